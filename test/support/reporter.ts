import fs from 'node:fs'
import path from 'node:path'
import Mocha from 'mocha'

export interface Totals {
  passed: number
  failed: number
  skipped: number
}

/** Totals of a mocha run and the duration of each passed test in ms, by test file. */
export type FileTotals = Record<string, Totals & { tests: Record<string, number> }>

/** The spec reporter, which also writes its totals to the file that TEST_TOTALS names, for the test command. */
export default class Reporter extends Mocha.reporters.Spec {
  constructor(runner: Mocha.Runner, options?: Mocha.MochaOptions) {
    super(runner, options)
    const files: FileTotals = {}
    const count = (what: keyof Totals) => (test: Mocha.Test) => {
      const file = test.file ? path.relative(process.cwd(), test.file) : ''
      files[file] ??= { passed: 0, failed: 0, skipped: 0, tests: {} }
      files[file][what]++
      if (what === 'passed') files[file].tests[test.fullTitle()] = test.duration ?? 0
    }
    runner.on('pass', count('passed'))
    runner.on('fail', count('failed'))
    runner.on('pending', count('skipped'))
    runner.once('end', () => {
      if (process.env.TEST_TOTALS) fs.writeFileSync(process.env.TEST_TOTALS, JSON.stringify(files))
    })
  }
}
