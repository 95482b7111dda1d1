/** How sure figures of a run are. */

/** Standard deviations of a normal distribution that hold 95 % of it. */
const Z = 1.959964

/** The Wilson interval of a share of `total`; null of nothing. */
export function wilsonInterval(passed: number, total: number): { low: number; high: number; level: number } | null {
  if (total === 0) return null
  const share = passed / total
  const z2 = Z * Z
  const spread = 1 + z2 / total
  const centre = (share + z2 / (2 * total)) / spread
  const half = (Z * Math.sqrt((share * (1 - share)) / total + z2 / (4 * total * total))) / spread
  return { low: Math.max(0, centre - half), high: Math.min(1, centre + half), level: 0.95 }
}

/** Flips up to which the sum is exact; beyond it is added up as logarithms, to ten digits. */
const EXACT = 2000

/**
 * The exact two-sided test of McNemar: how probable it is that as many of `improved` and `regressed` items went one way by
 * chance alone.
 */
export function mcnemarTest(improved: number, regressed: number): number {
  const flips = improved + regressed
  const fewer = Math.min(improved, regressed)
  if (flips === 0 || improved === regressed) return 1
  return Math.min(1, flips <= EXACT ? exactTail(flips, fewer) : logTail(flips, fewer))
}

/** 2 · Σ C(n, i) / 2^n for i up to k, by whole numbers. */
export function exactTail(n: number, k: number): number {
  let term = 1n
  let sum = 1n
  for (let i = 1; i <= k; i++) {
    term = (term * BigInt(n - i + 1)) / BigInt(i)
    sum += term
  }
  return ratio(sum * 2n, n)
}

/** A whole number over 2^n, by its first 64 bits. */
function ratio(numerator: bigint, n: number): number {
  const excess = Math.max(0, numerator.toString(16).length * 4 - 64)
  return Number(numerator >> BigInt(excess)) * 2 ** (excess - n)
}

/** The same for numbers that are too large to be added up: the last term by its logarithm, the others as shares of it. */
export function logTail(n: number, k: number): number {
  let share = 1
  let sum = 1
  for (let i = k; i > 0; i--) {
    share *= i / (n - i + 1)
    sum += share
    if (share < sum * 1e-18) break
  }
  const last = logFactorial(n) - logFactorial(k) - logFactorial(n - k) - n * Math.LN2
  return 2 * sum * Math.exp(last)
}

/** ln n!, by Stirling's series for large n. */
function logFactorial(n: number): number {
  if (n < 256) {
    let log = 0
    for (let i = 2; i <= n; i++) log += Math.log(i)
    return log
  }
  const x = n + 1
  return (
    (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + 1 / (12 * x) - 1 / (360 * x ** 3) + 1 / (1260 * x ** 5)
  )
}
