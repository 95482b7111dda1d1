/**
 * How often a test with random input or lost processes repeats itself: a few rounds in each run, the long ones with
 * `npm test -- --nightly`. The environment variable `name` chooses another number.
 */
export const rounds = (name: string, usual: number, nightly: number): number =>
  Number(process.env[name] ?? (process.env.TEST_NIGHTLY === 'true' ? nightly : usual))
