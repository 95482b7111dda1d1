/**
 * Checks the prose of comments, messages, descriptions and documentation for words that this project does not use:
 * pictures where the field has a term, processes as persons, clauses in place of nouns. `node test/support/prose.ts
 * [path …]` prints each finding with what to write and exits 1; without a path it checks everything.
 */
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
const DATA = ['src/mcp/search.ts']

/** Comments and literals with a space; SQL, import paths and single words are no prose. */
function findInSource(file: string, source: string): Finding[] {
  const tree = ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true)
  const lineOf = (position: number) => tree.getLineAndCharacterOfPosition(position).line + 1
  const found: Finding[] = []
  const comments = new Map<number, number>()
  const isData = DATA.includes(file)
  const visit = (node: ts.Node): void => {
    for (const range of [
      ...(ts.getLeadingCommentRanges(source, node.getFullStart()) ?? []),
      ...(ts.getTrailingCommentRanges(source, node.getEnd()) ?? []),
    ])
      comments.set(range.pos, range.end)
    const isSql = ts.isTaggedTemplateExpression(node.parent ?? node) && !ts.isIdentifier(node)
    if (isSql) return
    if (isData) return void ts.forEachChild(node, visit)
    if (ts.isStringLiteralLike(node) && node.text.includes(' '))
      found.push(...findIn(file, lineOf(node.getStart()), node.text))
    else if (ts.isTemplateExpression(node)) {
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
    .filter(file => /\.(ts|md|sql)$/.test(file) && !file.includes('/generated/'))
}

/** Findings in `targets`, paths below the root; default the application, its documentation and its migrations. */
export function forbiddenWords(targets: readonly string[]): Finding[] {
  return targets
    .flatMap(target => filesIn(path.resolve(root, target)))
    .flatMap(full => {
      const file = path.relative(root, full)
      const text = fs.readFileSync(full, 'utf8')
      if (file.endsWith('.ts')) return findInSource(file, text)
      if (file.endsWith('.md')) return findIn(file, 1, proseOf(text))
      return findIn(file, 1, text.replace(/'[^'\n]*'/g, "''").replace(/^(?!.*--).*$/gm, ''))
    })
}

if (process.argv[1] === import.meta.filename) {
  const targets = process.argv.slice(2)
  const found = forbiddenWords(
    targets.length > 0
      ? targets
      : [
          'src',
          'jobs',
          'bin',
          'scripts',
          'client/src',
          'client/build',
          'client/README.md',
          'sql',
          'docs',
          'README.md',
          'CONTRIBUTING.md',
        ],
  )
  for (const { file, line, word, instead } of found) console.log(`${file}:${line}: "${word}" → ${instead}`)
  console.log(`${found.length} forbidden words`)
  process.exitCode = found.length > 0 ? 1 : 0
}
