//! `limit_req_zone` and `limit_conn_zone`: counters and their keys.

use super::{Importer, lexer::Directive, numbers::RequestRate, variables::ZoneKey};
use std::sync::Arc;
use tidegate_policy::source::SourceSpan;

/// `limit_req_zone KEY zone=NAME:SIZE rate=RATE;`
#[derive(Clone, Debug)]
pub(super) struct RequestZone {
    /// How the key is expressed in a policy, or the part that is not supported.
    pub(super) key: Result<Arc<ZoneKey>, String>,
    pub(super) rate: RequestRate,
    pub(super) span: SourceSpan,
}

/// `limit_conn_zone KEY zone=NAME:SIZE;`
#[derive(Clone, Debug)]
pub(super) struct ConnectionZone {
    pub(super) key: Result<Arc<ZoneKey>, String>,
    pub(super) span: SourceSpan,
}

impl Importer<'_> {
    pub(super) fn read_request_zone(&mut self, directive: &Directive) {
        let Some(name) = self.zone_name(directive) else { return };
        let rate = match directive.option("rate") {
            None => RequestRate::DEFAULT,
            Some((text, at)) => match RequestRate::parse(text) {
                Some(rate) => rate,
                None => {
                    let problem = format!("`{text}` is not a valid rate");
                    return self.report_error(
                        at,
                        problem,
                        "write a whole number and a unit, for example `10r/s` or `30r/m`",
                    );
                }
            },
        };
        if let Err(error) = rate.quota(0, 0) {
            return self.report_error(directive.span, error.to_string(), "use a smaller rate");
        }
        if let Some(thousandths) = rate.rounded_rate() {
            let nginx = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
            self.record_loss(
                directive,
                format!("nginx rounds this down to {nginx} per second; a policy does not round"),
            );
        }
        let key = self.resolve_zone_key(directive);
        if self.request_zones.insert(name.clone(), RequestZone { key, rate, span: directive.span }).is_some()
        {
            self.report_error(directive.span, format!("duplicate zone name `{name}`"), "rename one of them");
        }
    }

    pub(super) fn read_connection_zone(&mut self, directive: &Directive) {
        let Some(name) = self.zone_name(directive) else { return };
        let key = self.resolve_zone_key(directive);
        if self.connection_zones.insert(name.clone(), ConnectionZone { key, span: directive.span }).is_some()
        {
            self.report_error(directive.span, format!("duplicate zone name `{name}`"), "rename one of them");
        }
    }

    fn zone_name(&mut self, directive: &Directive) -> Option<String> {
        let name = directive.option("zone").map(|(zone, _)| zone.split(':').next().unwrap_or_default());
        let (Some(name), true) = (name.filter(|name| !name.is_empty()), directive.args.len() >= 2) else {
            let problem = format!("`{}` takes a key and a zone", directive.name);
            let fix = format!("write for example `{} $binary_remote_addr zone=one:10m …;`", directive.name);
            self.report_error(directive.span, problem, fix);
            return None;
        };
        Some(name.to_owned())
    }

    fn resolve_zone_key(&mut self, directive: &Directive) -> Result<Arc<ZoneKey>, String> {
        let key = directive.arg(0).unwrap_or_default();
        let known = self.zone_keys.get(key).cloned();
        let zone_key = known.unwrap_or_else(|| self.variables.resolve_key(key).map(Arc::new));
        self.zone_keys.insert(key.to_owned(), zone_key.clone());
        if let Ok(zone_key) = &zone_key {
            zone_key
                .notes
                .iter()
                .for_each(|(kind, note)| self.record_loss_of_kind(*kind, directive.span, *note));
        }
        zone_key
    }
}
