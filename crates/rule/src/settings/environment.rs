//! Settings from the environment.

use super::{
    Settings, SettingsError,
    text::{self, Mistake, Variables},
};
use std::env;

impl Settings {
    /// What the environment says.
    ///
    /// | variable | says |
    /// |---|---|
    /// | `TIDEGATE_SETTINGS` | the path of a file; the others hold over what it says |
    /// | `TIDEGATE_MODE` | `enforce`, `shadow` or `off`, for all rules |
    /// | `TIDEGATE_STORE` | `memory`, or where the store is |
    /// | `TIDEGATE_PREFIX` | what all keys in a store start with |
    /// | `TIDEGATE_DEADLINE` | how long a store may take |
    /// | `TIDEGATE_ON_OUTAGE` | `open`, `closed`, or `local N` where N processes share the quota |
    /// | `TIDEGATE_RULES` | quotas of rules: `login = 10/min; signup = 3/h`; one that is named twice has both |
    ///
    /// What is not set, or empty, is not said.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::from_variables(&|name| match env::var(name) {
            Ok(value) => Some(value),
            Err(env::VarError::NotPresent) => None,
            // Whatever it is, it will be told to be none of what it could be.
            Err(env::VarError::NotUnicode(value)) => Some(value.to_string_lossy().into_owned()),
        })
    }

    /// The same, from variables that are given. A file is read again with those of the process.
    pub fn from_variables(variables: &dyn Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let said = |name: &str| variables(name).filter(|value| !value.trim().is_empty());
        let mut settings = match said("TIDEGATE_SETTINGS") {
            None => Self::new(),
            #[cfg(feature = "file")]
            Some(path) => Self::read_file(path.as_ref(), variables)?,
            #[cfg(not(feature = "file"))]
            Some(_) => {
                let mistake = Mistake::new("files cannot be read", "switch on the feature `file`");
                return Err(blame("TIDEGATE_SETTINGS", mistake));
            }
        };
        settings.mode =
            read("TIDEGATE_MODE", &said, |value| text::refuse_address(value).and_then(text::mode))?;
        settings.store = read("TIDEGATE_STORE", &said, |address| {
            text::expanded(address, variables).map(|address| address.as_str().into())
        })?;
        settings.prefix = said("TIDEGATE_PREFIX");
        settings.deadline =
            read("TIDEGATE_DEADLINE", &said, |value| text::refuse_address(value).and_then(text::time))?;
        settings.outage =
            read("TIDEGATE_ON_OUTAGE", &said, |value| text::refuse_address(value).and_then(text::outage))?;
        for line in said("TIDEGATE_RULES").unwrap_or_default().split(';').map(str::trim) {
            if !line.is_empty() {
                settings.add_rule(line).map_err(|mistake| blame("TIDEGATE_RULES", mistake))?;
            }
        }
        Ok(settings)
    }

    fn add_rule(&mut self, line: &str) -> Result<(), Mistake> {
        let fix = "write `login = 10/min; signup = 3/h`";
        text::refuse_address(line)?;
        let Some((rule, quota)) = line.split_once('=').map(|(rule, quota)| (rule.trim(), quota.trim()))
        else {
            return Err(Mistake::new(format!("`{line}` has no `=`"), fix));
        };
        if rule.is_empty() {
            return Err(Mistake::new(format!("`{line}` names no rule"), fix));
        }
        let quota = text::quota(quota).map_err(|mistake| Mistake {
            problem: format!("rule `{rule}`: `{quota}`: {}", mistake.problem),
            ..mistake
        })?;
        self.rules.entry(rule.to_owned()).or_default().quotas.push(quota);
        Ok(())
    }
}

fn read<T>(
    name: &str,
    said: &Variables<'_>,
    read: impl FnOnce(&str) -> Result<T, Mistake>,
) -> Result<Option<T>, SettingsError> {
    let value = said(name);
    value.map(|value| read(value.trim())).transpose().map_err(|mistake| blame(name, mistake))
}

fn blame(name: &str, mistake: Mistake) -> SettingsError {
    let Mistake { problem, fix, .. } = mistake;
    SettingsError::Variable { name: name.to_owned(), problem, fix }
}

#[cfg(test)]
mod tests {
    use crate::{Mode, Settings, StoreAddress};
    use tidegate_engine::Outage;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::from_variables(&find).map_err(|error| error.to_string())
    }

    #[test]
    fn all_that_the_environment_can_say() {
        let settings = settings(&[
            ("TIDEGATE_MODE", "shadow"),
            ("TIDEGATE_STORE", "redis://:$PASSWORD@db"),
            ("PASSWORD", "hunter2"),
            ("TIDEGATE_PREFIX", "shop"),
            ("TIDEGATE_DEADLINE", "20ms"),
            ("TIDEGATE_ON_OUTAGE", "local 4"),
            ("TIDEGATE_RULES", "login = 10/min; login=100/h;; signup = 3/h ;"),
        ])
        .unwrap();
        assert_eq!(settings.mode, Some(Mode::Shadow));
        assert!(matches!(&settings.store, Some(StoreAddress::Url(url)) if url == "redis://:hunter2@db"));
        assert_eq!(settings.prefix.as_deref(), Some("shop"));
        assert_eq!(settings.deadline.map(|time| time.as_millis()), Some(20));
        assert_eq!(settings.outage, Some(Outage::Local { nodes: 4 }));
        let quotas =
            |rule: &str| settings.rules[rule].quotas.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (quotas("login"), quotas("signup")),
            (vec!["10/min".into(), "100/h".into()], vec!["3/h".into()])
        );
        assert!(!format!("{settings:?}").contains("hunter2"));
    }

    #[test]
    fn nothing_is_said_by_an_empty_variable() {
        let settings =
            settings(&[("TIDEGATE_MODE", ""), ("TIDEGATE_STORE", " "), ("TIDEGATE_RULES", ";")]).unwrap();
        assert!(settings.mode.is_none() && settings.store.is_none() && settings.rules.is_empty());
    }

    #[test]
    fn errors_name_the_variable() {
        let table = [
            (("TIDEGATE_MODE", "of"), "TIDEGATE_MODE: unknown mode `of`; did you mean `off`?"),
            (("TIDEGATE_STORE", "redis://$NONE"), "TIDEGATE_STORE: the variable NONE is not set"),
            (("TIDEGATE_ON_OUTAGE", "local x"), "TIDEGATE_ON_OUTAGE: `x` is not a number of processes"),
            (("TIDEGATE_DEADLINE", "5"), "TIDEGATE_DEADLINE: "),
            (
                ("TIDEGATE_MODE", "redis://:hunter2@db"),
                "TIDEGATE_MODE: an address does not belong here; put it under",
            ),
            (
                ("TIDEGATE_RULES", "a = redis://:hunter2@db"),
                "TIDEGATE_RULES: an address does not belong here; put it",
            ),
            (("TIDEGATE_RULES", "login 10/min"), "TIDEGATE_RULES: `login 10/min` has no `=`"),
            (("TIDEGATE_RULES", "= 10/min"), "TIDEGATE_RULES: `= 10/min` names no rule"),
            (("TIDEGATE_RULES", "a = 1/s; b = 10/parsec"), "TIDEGATE_RULES: rule `b`: `10/parsec`: "),
        ];
        for (variable, start) in table {
            let error = settings(&[variable]).unwrap_err();
            assert!(error.starts_with(start), "{error}");
        }
    }
}
