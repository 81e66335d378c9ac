//! Starting workers, and ending them.

use crate::{
    Bound, Config, Fault, Judge,
    listen::PlainDoor,
    log::Logbook,
    places::Places,
    tls::Certificate,
    upstream::{Plan, Upstream},
    worker::{self, Order, Worker},
};
use std::{future::Future, sync::Arc, thread, time::Duration};
use tokio::{
    sync::{oneshot, watch},
    time,
};

/// Serves until `shutdown`, then takes no more connections and lets requests in flight end for as long as
/// [`drain`](tidegate_policy::model::Connections::drain) says.
///
/// Nothing is half-started: a fault comes before the first connection is accepted.
pub async fn run<J: Judge>(
    config: Config,
    listeners: Vec<Bound>,
    judge: Arc<J>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Fault> {
    let mut plans = Vec::new();
    for (name, upstream) in &config.upstreams {
        plans.push(Plan::of(name, upstream, &config.roots).await?);
    }
    let (config, plans) = (Arc::new(config), Arc::new(plans));
    let places = Places::new(&config.connections);
    let (log, writing) = Logbook::open(&config.log)?.unzip();
    let (orders, ordered) = watch::channel(Order::Serve);

    let mut ends = Vec::new();
    for number in 0..config.workers.get() {
        let doors =
            listeners.iter().map(Bound::door).collect::<Result<Vec<_>, _>>().map_err(Fault::Machine)?;

        let (ended, end) = oneshot::channel();
        let (config, plans, places, judge, ordered, log) =
            (config.clone(), plans.clone(), places.clone(), judge.clone(), ordered.clone(), log.clone());
        let work = move || {
            let outcome = worker::runtime().and_then(|runtime| {
                runtime.block_on(async {
                    let doors = doors.into_iter().map(PlainDoor::open).collect::<Result<Vec<_>, _>>();
                    let doors = doors.map_err(Fault::Machine)?;
                    let watch = worker::watch_of_machine();
                    let upstreams = plans.iter().map(|plan| Upstream::new(plan, &watch)).collect();
                    let worker = Worker::new(&config, upstreams, places, watch, log);
                    if number == 0 {
                        worker.check_servers();
                    }
                    worker.run(doors, judge, ordered).await;
                    Ok(())
                })
            });
            // Whoever started it may be gone.
            let _ = ended.send(outcome);
        };
        thread::Builder::new().name(format!("worker-{number}")).spawn(work).map_err(Fault::Machine)?;
        ends.push(end);
    }
    let certificates: Vec<_> = listeners.iter().filter_map(Bound::certificate).collect();
    drop(listeners);

    tokio::select! {
        () = shutdown => {}
        () = refresh(certificates) => {}
    }
    let _ = orders.send(Order::Stop);
    for end in ends {
        end.await.unwrap_or(Ok(()))?;
    }
    drop(log);
    if let Some(writing) = writing {
        // The last lines are written before this ends.
        let _ = tokio::task::spawn_blocking(move || writing.join()).await;
    }
    Ok(())
}

/// How often files of certificates are looked at.
const REFRESH: Duration = Duration::from_secs(1);

async fn refresh(certificates: Vec<Arc<Certificate>>) {
    loop {
        time::sleep(REFRESH).await;
        certificates.iter().for_each(|certificate| certificate.refresh());
    }
}
