//! Where a gateway can be reached.

use crate::terminal::{Paint, Tone};
use std::fmt::Write as _;
use tidegate_server::Gateway;

/// A line for each listener.
pub(crate) fn of(gateway: &Gateway, paint: Paint) -> String {
    let mut text = String::new();
    let tls = gateway.policy().listen.iter().map(|listener| listener.tls.is_some());
    for (address, has_tls) in gateway.addresses().iter().zip(tls.chain(std::iter::repeat(false))) {
        let scheme = if has_tls { "https" } else { "http" };
        // Writing to a string does not fail.
        let _ = writeln!(text, "gateway  {}", paint.tone(Tone::Strong, format!("{scheme}://{address}")));
    }
    if let Some(address) = gateway.decisions_address() {
        let has_tls = gateway.policy().decisions.as_ref().is_some_and(|decisions| decisions.tls.is_some());
        let scheme = if has_tls { "https" } else { "http" };
        let _ = writeln!(text, "decide   {}", paint.tone(Tone::Strong, format!("{scheme}://{address}")));
    }
    if let Some(address) = gateway.admin_address() {
        let _ = writeln!(text, "admin    {}", paint.tone(Tone::Strong, format!("http://{address}")));
    }
    text
}
