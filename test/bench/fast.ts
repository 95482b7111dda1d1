const isFast = process.argv.includes('--fast')

/** An amount of a benchmark: of repetitions, rows or time. `fast`: with `--fast`, which shows ratios of fewer samples. */
export const amount = (full: number, fast: number): number => (isFast ? fast : full)
