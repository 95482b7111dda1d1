import fs from 'node:fs'
import path from 'node:path'
import Mocha from 'mocha'

export interface Totals {
  passed: number
  failed: number
  skipped: number
}

/** Totals of a mocha run, by test file, as written to the file that TEST_TOTALS names. */
export type FileTotals = Record<string, Totals>

/** The spec reporter, which also leaves its totals for the test command. */
export default class Reporter extends Mocha.reporters.Spec {
  constructor(runner: Mocha.Runner, options?: Mocha.MochaOptions) {
    super(runner, options)
    const files: FileTotals = {}
    const count = (what: keyof Totals) => (test: Mocha.Test) => {
      const file = test.file ? path.relative(process.cwd(), test.file) : ''
      files[file] ??= { passed: 0, failed: 0, skipped: 0 }
      files[file][what]++
    }
    runner.on('pass', count('passed'))
    runner.on('fail', count('failed'))
    runner.on('pending', count('skipped'))
    runner.once('end', () => {
      if (process.env.TEST_TOTALS) fs.writeFileSync(process.env.TEST_TOTALS, JSON.stringify(files))
    })
  }
}
