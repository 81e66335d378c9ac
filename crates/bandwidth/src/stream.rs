//! Rate-limited streams. An item is passed whole; the next one waits until its bytes are repaid.

use super::shaped_stream::{DirectionParts, ShapedStream};
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use std::{
    borrow::Cow,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// The number of bytes of an item of a stream. An `Err` has none.
///
/// ```
/// use tidegate_bandwidth::ByteLen;
///
/// struct Message { head: [u8; 16], text: String }
///
/// impl ByteLen for Message {
///     fn byte_len(&self) -> usize {
///         self.head.len() + self.text.len()
///     }
/// }
/// let message: Result<_, ()> = Ok(Message { head: [0; 16], text: "four".into() });
/// assert_eq!(message.byte_len(), 20);
/// ```
pub trait ByteLen {
    /// The number of bytes.
    fn byte_len(&self) -> usize;
}

macro_rules! impl_byte_len {
    ($($item:ty),+ $(,)?) => {
        $(impl ByteLen for $item {
            fn byte_len(&self) -> usize {
                self.len()
            }
        })+
    };
}

impl_byte_len!([u8], str, String, Vec<u8>, Bytes, BytesMut);

impl<const N: usize> ByteLen for [u8; N] {
    fn byte_len(&self) -> usize {
        N
    }
}

macro_rules! impl_byte_len_deref {
    ($($pointer:ty),+ $(,)?) => {
        $(impl<T: ByteLen + ?Sized> ByteLen for $pointer {
            fn byte_len(&self) -> usize {
                (**self).byte_len()
            }
        })+
    };
}

impl_byte_len_deref!(&T, Box<T>, Arc<T>, Rc<T>);

impl<T: ByteLen + ToOwned + ?Sized> ByteLen for Cow<'_, T> {
    fn byte_len(&self) -> usize {
        (**self).byte_len()
    }
}

impl<T: ByteLen, E> ByteLen for Result<T, E> {
    fn byte_len(&self) -> usize {
        self.as_ref().map_or(0, T::byte_len)
    }
}

impl<S: Stream> Stream for ShapedStream<S>
where
    S::Item: ByteLen,
{
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let DirectionParts { inner, handle } = self.project_read();
        let Some(handle) = handle else { return inner.poll_next(context) };
        ready!(handle.poll_item(context));
        let end = inner.poll_next(context);
        match &end {
            Poll::Ready(Some(item)) => handle.record_item(item.byte_len()),
            Poll::Ready(None) | Poll::Pending => handle.release_unused(),
        }
        end
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.get_ref().size_hint()
    }
}
