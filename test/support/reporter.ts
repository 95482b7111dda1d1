import fs from 'node:fs'
import Mocha from 'mocha'

/** Totals of a mocha run as written to the file that TEST_TOTALS names. */
export interface Totals {
  passed: number
  failed: number
  skipped: number
}

/** The spec reporter, which also leaves its totals for the test command. */
export default class Reporter extends Mocha.reporters.Spec {
  constructor(runner: Mocha.Runner, options?: Mocha.MochaOptions) {
    super(runner, options)
    runner.once('end', () => {
      const { passes, failures, pending } = this.stats
      const totals: Totals = { passed: passes, failed: failures, skipped: pending }
      if (process.env.TEST_TOTALS) fs.writeFileSync(process.env.TEST_TOTALS, JSON.stringify(totals))
    })
  }
}
