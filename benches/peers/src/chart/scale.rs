//! From figures to places on an axis.

/// From this many times the smallest figure on, the axis is logarithmic.
const LOGARITHMIC_FROM: f64 = 20.0;
const TICKS: f64 = 5.0;

/// An axis.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    least: f64,
    most: f64,
    is_logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// An axis for these figures, all above zero, between two places.
    pub fn over(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Scale {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.into_iter().filter(|value| value.is_finite() && *value > 0.0) {
            (least, most) = (least.min(value), most.max(value));
        }
        if least > most {
            (least, most) = (1.0, 1.0);
        }
        let is_logarithmic = most / least >= LOGARITHMIC_FROM;
        if is_logarithmic {
            (least, most) = (nice_below(least), nice_above(most));
        } else {
            (least, most) = (0.0, (most / step(most)).ceil() * step(most));
        }
        Scale { least, most, is_logarithmic, from, to }
    }

    /// Where a figure is.
    pub fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.least, self.most);
        let part = if self.is_logarithmic {
            (value / self.least).ln() / (self.most / self.least).ln()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        self.from + part * (self.to - self.from)
    }

    /// Figures that are named on the axis.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.is_logarithmic {
            let step = step(self.most);
            let count = (self.most / step).round() as usize;
            return (0..=count).map(|tick| tick as f64 * step).collect();
        }
        let decades = (self.most / self.least).log10();
        let steps: &[f64] = if decades <= 2.6 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let first = self.least.log10().floor() as i32;
        let last = self.most.log10().ceil() as i32;
        let within =
            |tick: &f64| *tick >= self.least * (1.0 - 1e-9) && *tick <= self.most * (1.0 + 1e-9);
        let decade = |power: i32| steps.iter().map(move |step| step * 10_f64.powi(power));
        (first..=last).flat_map(decade).filter(within).collect()
    }
}

/// The distance of ticks from zero to `most`.
fn step(most: f64) -> f64 {
    nice_above(most / TICKS)
}

/// 1, 2 or 5 times a power of ten, not below the value.
fn nice_above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let nice = [1.0, 2.0, 5.0].into_iter().map(|times| times * decade);
    nice.into_iter().find(|nice| *nice >= value * (1.0 - 1e-9)).unwrap_or(10.0 * decade)
}

/// 1, 2 or 5 times a power of ten, not above the value.
fn nice_below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let nice = [5.0, 2.0, 1.0].into_iter().map(|times| times * decade);
    nice.into_iter().find(|nice| *nice <= value * (1.0 + 1e-9)).unwrap_or(decade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_figures_are_linear_from_zero() {
        let scale = Scale::over([30.0, 87.0], 100.0, 200.0);
        assert_eq!(scale.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!((scale.at(0.0), scale.at(50.0), scale.at(100.0)), (100.0, 150.0, 200.0));
    }

    #[test]
    fn far_figures_are_logarithmic() {
        let scale = Scale::over([70.0, 1_003_237.0], 0.0, 300.0);
        assert_eq!(scale.ticks().first(), Some(&100.0));
        assert_eq!(scale.ticks().last(), Some(&1e6));
        let two_decades = scale.at(1e5) - scale.at(1e3);
        assert!((two_decades - 2.0 * (scale.at(1e3) - scale.at(1e2))).abs() < 1e-9);
        assert_eq!((scale.at(1.0), scale.at(1e9)), (0.0, 300.0));
    }

    #[test]
    fn short_logarithmic_axis_has_ticks_between_the_powers() {
        let scale = Scale::over([1.0, 64.0], 0.0, 1.0);
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn axis_may_run_upwards_and_be_empty() {
        let scale = Scale::over([10.0], 300.0, 100.0);
        assert!(scale.at(10.0) < scale.at(5.0));
        assert!(Scale::over([], 0.0, 1.0).at(1.0).is_finite());
    }
}
