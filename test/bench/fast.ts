const isFast = process.argv.includes('--fast')

/** An amount of a benchmark: of repetitions, rows or time. `fast`: with `--fast`, which shows ratios of fewer samples. */
export const amount = (full: number, fast: number): number => (isFast ? fast : full)

/** Prints the step of a benchmark that begins. */
export const progress = (step: string): void => console.log(`  ${Math.round(performance.now() / 1000)} s: ${step}`)
