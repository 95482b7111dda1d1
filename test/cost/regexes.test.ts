import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { checkSync } from 'recheck'
import { isPlain, parts, sourceRegexes } from './regexes.ts'

/** Patterns that are super-linear, or too large for the analysis, with what bounds their time. */
const EXCEPTIONS: Record<string, string> = {
  '/\\b(sk[_-]|stk_|whsec_|ort_|upt_|rcb_|eyJ)[\\w.-]{8,}/g': 'measured as redactCredentials',
  '/\\$\\{file:([^}]+)\\}/g': 'a template of the user of the command line',
  '/^\\s*WITH\\s+(ins AS \\([\\s\\S]*\\)), notified AS \\([\\s\\S]*\\)\\s*SELECT id FROM ins WHERE \\(SELECT count\\(\\*\\) FROM notified\\) < 0\\s*$/':
    'a statement of pg-boss',
  '/(^|[^A-Za-z0-9]+)([A-Za-z0-9])/g': 'names of operations and schemas',
  '/\\[([^\\]]*)\\]\\(([^)\\s]+)\\)/g': 'pages of the documentation',
  '/\\s*\\n\\s*/g': 'pages of the documentation',
}

/** Patterns of which only a part is in the sources, with what bounds their time. */
const CALLS: Record<string, string> = {
  "console/src/views/content/search.tsx: `(?<![\\\\p{L}\\\\p{N}])((?:${stems.join('|')})[\\\\p{L}\\\\p{N}]*)`":
    'words of the query in an excerpt: a match starts only at the start of a word',
  'src/content/index/chunks/token-measure.ts: tokenizer.split':
    'windows of bounded length; content/index/chunks/split.ts is measured',
  'src/content/files/media-type.ts: `^${TOKEN}/${TOKEN}( *; *${TOKEN}=(${TOKEN}|"[ !#-\\\\[\\\\]-~]*"))*$`':
    'at most 255 characters',
  'src/content/index/words/fold.ts: `(?<run>(?:${UNSPACED_LETTER}\\\\p{M}*)+)|[[\\\\p{L}\\\\p{M}\\\\p{N}]--${UNSPACED_LETTER}]+`':
    'classes of characters without common characters',
  "src/content/index/words/fold.ts: `[${Object.keys(LETTERS).join('')}]`": 'one character',
  'src/core/json-schema/validate.ts: text':
    'compiled to a linear automaton where the analysis of the pattern demands it',
  'src/execution/providers/body-facts.ts: `"${name}": ?"([^"\\\\\\\\]{1,255})"`': 'names in the source',
  'src/execution/providers/body-facts.ts: `"${name}"(?:$|:(?:$| ?$| ?"[^"]*$))`': 'names in the source',
  'src/execution/providers/options/schema.ts: pattern': 'patterns of the packages',
  'src/execution/tools/tokens.ts: `${SECRET.source}|${CONTEXT.source}`': 'measured as fillTokens',
  'src/execution/tools/tokens.ts: `^${CONTEXT.source}$`': 'measured as misplacedTokens',
  'src/execution/tools/tokens.ts: `^${SECRET.source}$`': 'measured as misplacedTokens',
  'src/identity/secrets/model.ts: `^${SEGMENT}(?:/${SEGMENT})*(?:#[A-Za-z0-9_.-]{1,128})?$`':
    'segments are separated by a character that they do not contain',
  'src/local/double/match.ts: condition.regex': 'a script of the operator of the double',
  'src/local/double/script.ts: value.regex': 'a script of the operator of the double',
  'src/mcp/resources.ts: `^svc://${kind}/([A-Za-z0-9_]+)$`': 'one unbounded part, anchored',
  'src/protocols/a2a/methods.ts: `${CONFIGS}$`': 'parts are separated by a character that they do not contain',
  'src/protocols/a2a/methods.ts: `${CONFIGS}/([^/]+)$`': 'parts are separated by a character that they do not contain',
}

const LINEAR_FILE = path.join(import.meta.dirname, 'linear-regexes.json')
/** Patterns that the analysis found linear: it takes minutes for all. */
const LINEAR = new Set(JSON.parse(fs.readFileSync(LINEAR_FILE, 'utf8')) as string[])

/** The analysis in JavaScript gives each machine the same result. */
process.env.RECHECK_BACKEND = 'pure'

/** Returns the problem of a pattern; null if it takes linear time on every text. */
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
