/**
 * Checks the prose of comments, messages, descriptions and documentation for words that this project does not use:
 * pictures where the field has a term, processes as persons, clauses in place of nouns. `node test/support/prose.ts
 * [path …]` prints each finding with what to write and exits 1; without a path it checks everything, and the subjects of
 * commits.
 */
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import ts from 'typescript'

const root = path.resolve(import.meta.dirname, '../..')

/** Pattern and what to write instead. Words are matched whole and in any case. */
const FORBIDDEN: readonly (readonly [pattern: string, instead: string])[] = [
  ['that of|those of|the one of|the ones of', 'repeat the noun'],
  ['(?:the )?ones? (?:that|who|which)', 'repeat the noun'],
  ['nobody|somebody|whoever|whomever', 'no worker, another process, the caller'],
  ['tells?|told|telling', 'notifies, returns, reports'],
  ['hears?(?: of)?|heard', 'receives, subscribes to'],
  ['asks|asked|asking|ask(?! for approval)', 'requests, queries, calls'],
  ['looks?(?! up)|looked(?! up)|looking(?! up)', 'checks, queries, polls'],
  ['knows?|knew', 'caches, reads, has'],
  ['wants?|wanted', 'requires, requests'],
  ['beside', 'alongside, next to, in the same statement'],
  [
    'behind(?! (?:a|the|your|one) (?:reverse |load |trusted )?(?:prox|balanc|ingress|gateway))',
    'after, later in the queue',
  ],
  ['rooms?', 'capacity, a slot'],
  ['doors?', 'endpoint'],
  ['anew|afresh', 'again, rebuilt'],
  ['go(?:es)? on|went on|going on|gone on', 'continues, resumes'],
  ['stands?(?! for)|stood', 'is, is stored'],
  ['stand-ins?', 'mock, substitute'],
  ['by hand', 'manually'],
  ['apart(?! from)', 'separately'],
  ['let(?:s|ting)? go|lets? on', 'releases'],
  ['puts? off|putting off', 'reschedules, defers'],
  ['(?:gives?|given|gave|giving) (?:up|back)', 'abandons, requeues, releases'],
  ['hand(?:s|ed|ing)? back', 'requeues'],
  ['under way', 'active, in progress'],
  [
    'what (?:is|was|are|were|it|they|he|came|comes|became|becomes|goes|went|happened|follows?|belongs|waits?|begins?|leads?)',
    'a noun',
  ],
  ['came of (?:it|them)|c(?:o|a)mes? to(?= (?:an? end|nothing|it))', 'outcome, result'],
  ['as it (?:is|was|stands)', 'current, unchanged'],
  ['at once', 'immediately, or concurrently'],
  ['of (?:its|their) own', 'separate, or nothing'],
  ['in (?:the|whose|its|their) names? of|in whose name', 'with the permissions of, as'],
  ['(?:goes|go|gone|going) with', 'is allowed only with, is deleted with'],
  ['no such', 'X not found'],
  ['is there twice|are there twice', 'is a duplicate'],
  ['names no', 'X not found'],
  ['by now', 'already, or nothing'],
  ['for good|for ever', 'permanently, without expiry'],
  ['so (?:many|long|much)', 'the name of the parameter'],
  ['left alone', 'is not changed'],
  ['please', 'nothing'],
  ['the like|and so on|the rest of it', 'list the members'],
  ['mends?|mended', 'fixes'],
  ['has the say|have the say|his|her|himself', 'the caller'],
]

const pattern = new RegExp(`\\b(?:${FORBIDDEN.map(([words]) => `(${words})`).join('|')})\\b`, 'gi')

type Finding = { file: string; line: number; word: string; instead: string }

function findIn(file: string, line: number, text: string): Finding[] {
  return [...text.matchAll(pattern)].map(match => {
    const at = match.slice(1).findIndex(group => group !== undefined)
    return {
      file,
      line: line + text.slice(0, match.index).split('\n').length - 1,
      word: match[0],
      instead: FORBIDDEN[at]![1],
    }
  })
}

/** Files whose literals are data, such as words that callers search by. */
const DATA = ['src/mcp/search.ts', 'test/support/prose.ts']

const TITLED = /^(?:describe|it|before|after|beforeEach|afterEach)(?:\.\w+)?$/

/**
 * Whether a literal of a test is read by people: a title, the message of an assertion or error, the name of a wait. All
 * others are data, such as prompts and texts of files.
 */
function isTitleOrMessage(literal: ts.Node): boolean {
  const { parent } = literal
  if (ts.isPropertyAssignment(parent)) return parent.name.getText() === 'what'
  if (ts.isNewExpression(parent)) return parent.expression.getText().endsWith('Error')
  if (!ts.isCallExpression(parent)) return false
  const called = parent.expression.getText()
  if (TITLED.test(called)) return parent.arguments[0] === literal
  const operands = /^assert(?:\.ok)?$/.test(called) ? 1 : 2
  return called.startsWith('assert') && parent.arguments.indexOf(literal as ts.Expression) >= operands
}

/** Comments, texts of pages, and literals with a space; SQL, import paths, single words and data of tests are no prose. */
function findInSource(file: string, source: string): Finding[] {
  const tree = ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true)
  const lineOf = (position: number) => tree.getLineAndCharacterOfPosition(position).line + 1
  const found: Finding[] = []
  const comments = new Map<number, number>()
  const isProse = DATA.includes(file) ? () => false : file.startsWith('test/') ? isTitleOrMessage : () => true
  const visit = (node: ts.Node): void => {
    for (const range of [
      ...(ts.getLeadingCommentRanges(source, node.getFullStart()) ?? []),
      ...(ts.getTrailingCommentRanges(source, node.getEnd()) ?? []),
    ])
      comments.set(range.pos, range.end)
    const isSql = ts.isTaggedTemplateExpression(node.parent ?? node) && !ts.isIdentifier(node)
    if (isSql) return
    if ((ts.isStringLiteralLike(node) || ts.isJsxText(node)) && node.text.includes(' ') && isProse(node))
      found.push(...findIn(file, lineOf(node.getStart()), node.text))
    else if (ts.isTemplateExpression(node) && isProse(node)) {
      const text = [node.head.text, ...node.templateSpans.map(span => span.literal.text)].join('…')
      if (text.includes(' ')) found.push(...findIn(file, lineOf(node.getStart()), text))
    }
    ts.forEachChild(node, visit)
  }
  visit(tree)
  for (const [from, to] of comments) found.push(...findIn(file, lineOf(from), source.slice(from, to)))
  return found
}

/** Text of a page without code blocks, inline code and link targets. */
const proseOf = (page: string): string =>
  page
    .replace(/^```[\s\S]*?^```/gm, block => block.replace(/[^\n]/g, ''))
    .replace(/`[^`\n]*`/g, '``')
    .replace(/\]\([^)]*\)/g, ']')

/** Sources, pages and migrations in a directory, or the file itself. */
export function filesIn(target: string): string[] {
  if (!fs.statSync(target).isDirectory()) return [target]
  return fs
    .readdirSync(target, { recursive: true, encoding: 'utf8' })
    .map(file => path.join(target, file))
    .filter(file => /\.(tsx?|md|sql)$/.test(file) && !/\/(generated|dist|node_modules)\//.test(file))
}

/** Findings in `targets`, paths below `base`. */
export function forbiddenWords(targets: readonly string[], base = root): Finding[] {
  return targets
    .flatMap(target => filesIn(path.resolve(base, target)))
    .flatMap(full => {
      const file = path.relative(base, full)
      const text = fs.readFileSync(full, 'utf8')
      if (/\.tsx?$/.test(file)) return findInSource(file, text)
      if (file.endsWith('.md')) return findIn(file, 1, proseOf(text))
      return findIn(file, 1, text.replace(/'[^'\n]*'/g, "''").replace(/^(?!.*--).*$/gm, ''))
    })
}

/** What the check reads by default. */
export const PROSE: readonly string[] = [
  'src',
  'jobs',
  'bin',
  'scripts',
  'client/src',
  'client/build',
  'client/README.md',
  'cli/src',
  'console',
  'test',
  'sql',
  'docs',
  // Absent after a release.
  ...(fs.existsSync(path.join(root, 'changes')) ? ['changes'] : []),
  'README.md',
  'CHANGELOG.md',
  'CONTRIBUTING.md',
  'SECURITY.md',
]

/** First words of subjects. A verb that is missing is added here. */
const VERBS = new Set(
  `accept add adopt allow answer apply assert attribute audit authorize batch begin bind bound break build bundle cache
  call cancel change check choose claim classify close collect commit compare compile complete compress compute confine
  continue convert copy correct count cover create cut decide declare decode default defer define delete deny deprecate
  derive describe detect disable divide document drop emit enable encode encrypt end enforce erase escape estimate
  evaluate exclude expect expire explain export expose extract fail fetch file filter find fix fold follow forbid format
  generate group guard handle hide ignore import include increase index inherit inline insert install join keep label let
  limit link lint list load lock log lower make map mark mask match measure merge meter migrate mirror move name narrow
  note number offer omit open order page parse pass pause permit pin poll prefer prepare prevent price print process
  prove publish purge put quarantine query queue quote raise reach read rebuild recognize record recover redact reduce
  refer refresh refuse reject release reload remove rename render renew repeat replace replay report request require requeue
  rerun resolve respond restore restrict resume retain retry return reuse reveal reword rewrite rotate round run sample
  scan schedule seal search send separate serve set settle share shorten show sign simplify simulate skip sort split
  start state stop store stream strip suspend sweep take test throttle time tolerate trace track translate trim try type
  unify unwrap update upgrade use validate verify wait warn widen withdraw wrap write`.split(/\s+/),
)

/** Commits before the rule are not checked. */
const RULE_SINCE = '2026-11-29T10:00:00Z'

/** What a subject breaks of the rule `area: imperative`, at most 72 characters; null if it keeps it. */
export function subjectProblem(subject: string): string | null {
  const [, verb] = /^[a-z][a-z0-9-]*(?:(?:, | )[a-z0-9-]+)*: (\S+) \S/.exec(subject) ?? []
  if (!verb) return 'begin with the area, then what the commit does: `search: keep codes of hot projects in memory`'
  if (!VERBS.has(verb)) return `begin with a verb in the imperative, not "${verb}" (VERBS lists them)`
  return subject.length > 72 ? `shorten to 72 characters, not ${subject.length}` : null
}

/**
 * Findings in the subjects of commits since `since`, without merges: all that the clone has, so that a shallow one is
 * checked as far as it goes; none without git or outside a repository.
 */
export function subjectFindings(directory: string, since = RULE_SINCE): string[] {
  const log = spawnSync('git', ['log', '--no-merges', `--since=${since}`, '--format=%h %s'], {
    cwd: directory,
    encoding: 'utf8',
  })
  if (log.status !== 0) return []
  return log.stdout
    .split('\n')
    .filter(Boolean)
    .flatMap(line => {
      const [, hash, subject] = /^(\S+) (.*)$/.exec(line)!
      const problems = [
        subjectProblem(subject),
        ...findIn('', 1, subject).map(found => `"${found.word}" → ${found.instead}`),
      ]
      return problems.flatMap(problem => (problem ? [`commit ${hash}: ${problem}`] : []))
    })
}

if (process.argv[1] === import.meta.filename) {
  const targets = process.argv.slice(2)
  const found = forbiddenWords(targets.length > 0 ? targets : PROSE)
  const subjects = targets.length > 0 ? [] : subjectFindings(root)
  for (const { file, line, word, instead } of found) console.log(`${file}:${line}: "${word}" → ${instead}`)
  for (const finding of subjects) console.log(finding)
  console.log(`${found.length} forbidden words, ${subjects.length} subjects of commits to change`)
  process.exitCode = found.length + subjects.length > 0 ? 1 : 0
}
