import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { checkSync } from 'recheck'
import { isPlain, parts, sourceRegexes } from './regexes.ts'

/** Patterns that are super-linear, or too large for the analysis, with what bounds their time. */
const EXCEPTIONS: Record<string, string> = {}

/** Patterns of which only a part is in the sources, with what bounds their time. */
const CALLS: Record<string, string> = {}

const LINEAR_FILE = path.join(import.meta.dirname, 'linear-regexes.json')
/** Patterns that the analysis found linear: it takes minutes for all. */
const LINEAR = new Set(JSON.parse(fs.readFileSync(LINEAR_FILE, 'utf8')) as string[])

/** The analysis in JavaScript gives each machine the same result. */
process.env.RECHECK_BACKEND = 'pure'

/** Returns what is wrong with a pattern; null if it takes linear time on every text. */
function problemOf(text: string): string | null {
  const { source, flags } = parts(text)
  const result = checkSync(source, flags.replaceAll(/[dv]/g, ''), { timeout: 60_000 })
  if (result.status === 'safe') return null
  return result.status === 'vulnerable' ? `${result.complexity.summary}: ${result.attack.pattern}` : 'unknown'
}

/** Own regular expressions take linear time on every text. */
describe('regular expressions of the sources', function () {
  this.timeout(900_000)
  const { literals, calls } = sourceRegexes()
  const analysed = literals.filter(({ text }) => !isPlain(text))

  it('are linear, or have an exception', () => {
    const proven: string[] = []
    const problems = analysed.flatMap(({ text, at }) => {
      if (text in EXCEPTIONS) return []
      const problem = LINEAR.has(text) ? null : problemOf(text)
      if (problem === null) proven.push(text)
      return problem === null ? [] : [`${at.join(', ')}: ${text}: ${problem}`]
    })
    // With WRITE_LINEAR_REGEXES the analysed ones are written down, so that they are not analysed again.
    if (process.env.WRITE_LINEAR_REGEXES) fs.writeFileSync(LINEAR_FILE, `${JSON.stringify(proven.sort(), null, 2)}\n`)
    assert.deepEqual(problems, [])
  })

  it('have no exception that is not needed', () => {
    const texts = new Set(analysed.map(({ text }) => text))
    assert.deepEqual(
      Object.keys(EXCEPTIONS).filter(text => !texts.has(text)),
      [],
    )
  })

  it('are built from parts only where it is known from which', () => {
    assert.deepEqual(calls.map(({ text }) => text).sort(), Object.keys(CALLS).sort())
  })
})
