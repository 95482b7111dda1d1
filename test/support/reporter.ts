import fs from 'node:fs'
import path from 'node:path'
import Mocha from 'mocha'

export interface Totals {
  passed: number
  failed: number
  skipped: number
}

/**
 * Totals of a mocha run, the duration of each passed test in ms, and the message of each failure, by test file and full
 * title.
 */
export type FileTotals = Record<string, Totals & { tests: Record<string, number>; failures: Record<string, string> }>

/** The spec reporter, which also writes its totals to the file that TEST_TOTALS names, for the test command. */
export default class Reporter extends Mocha.reporters.Spec {
  constructor(runner: Mocha.Runner, options?: Mocha.MochaOptions) {
    super(runner, options)
    const files: FileTotals = {}
    const count = (what: keyof Totals) => (test: Mocha.Test, error?: unknown) => {
      const file = test.file ? path.relative(process.cwd(), test.file) : ''
      files[file] ??= { passed: 0, failed: 0, skipped: 0, tests: {}, failures: {} }
      files[file][what]++
      if (what === 'passed') files[file].tests[test.fullTitle()] = test.duration ?? 0
      if (what === 'failed') files[file].failures[test.fullTitle()] = messageOf(error)
    }
    runner.on('pass', count('passed'))
    runner.on('fail', count('failed'))
    runner.on('pending', count('skipped'))
    runner.once('end', () => {
      if (process.env.TEST_TOTALS) fs.writeFileSync(process.env.TEST_TOTALS, JSON.stringify(files))
    })
  }
}

const MESSAGE_CHARS = 1_000

const messageOf = (error: unknown): string =>
  // Of another process, an error is an object.
  String((error as Partial<Error> | undefined)?.message ?? error).slice(0, MESSAGE_CHARS)
