import fs from 'node:fs'
import path from 'node:path'
import ts from 'typescript'

const root = path.resolve(import.meta.dirname, '../..')

/** A regular expression of the sources with the places that have it. */
export type SourceRegex = { text: string; at: string[] }

/** Returns the literals of the sources, and the calls of RegExp with the text of their argument. */
export function sourceRegexes(): { literals: SourceRegex[]; calls: SourceRegex[] } {
  const literals = new Map<string, string[]>()
  const calls = new Map<string, string[]>()
  const add = (found: Map<string, string[]>, text: string, at: string) => {
    const places = found.get(text)
    if (places) places.push(at)
    else found.set(text, [at])
  }
  const patterns = ['src', 'jobs', 'client/src', 'cli/src', 'console/src'].map(folder => `${folder}/**/*.{ts,tsx}`)
  for (const file of fs.globSync(patterns, { cwd: root, exclude: ['**/node_modules/**', '**/generated/**'] })) {
    const text = fs.readFileSync(path.join(root, file), 'utf8')
    const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest)
    const visit = (node: ts.Node): void => {
      if (ts.isRegularExpressionLiteral(node)) add(literals, node.text, file)
      const isCall = ts.isNewExpression(node) || ts.isCallExpression(node)
      if (isCall && ts.isIdentifier(node.expression) && node.expression.text === 'RegExp')
        add(calls, `${file}: ${node.arguments?.[0]?.getText(source)}`, file)
      ts.forEachChild(node, visit)
    }
    visit(source)
  }
  const list = (found: Map<string, string[]>) => [...found].map(([text, at]) => ({ text, at }))
  return { literals: list(literals), calls: list(calls) }
}

export function parts(text: string): { source: string; flags: string } {
  const end = text.lastIndexOf('/')
  return { source: text.slice(1, end), flags: text.slice(end + 1) }
}

/** Product of the maxima of counted quantifiers: steps from one start. */
const MAX_STEPS = 5_000

/**
 * Whether a pattern is linear by its form: without unbounded quantifiers and few steps from each start, or anchored with
 * a quantifier outside groups. Other patterns need an analysis.
 */
export function isPlain(text: string): boolean {
  const { source, flags } = parts(text)
  const simple = source.replace(/\\[pP]\{[^}]*\}|\\u\{[^}]*\}|\\./gs, 'a').replace(/\[[^\]]*\]/g, 'a')
  if (/\(\?<?[=!]/.test(simple)) return false
  let steps = 1
  for (const [, least, comma, most] of simple.matchAll(/\{(\d+)(,?)(\d*)\}/g)) {
    if (comma !== '' && most === '') return false
    steps *= Number(most || least) + 1
  }
  if (steps > MAX_STEPS) return false
  const unbounded = simple.match(/[*+]/g)?.length ?? 0
  if (unbounded === 0) return true
  if (unbounded > 1 || !simple.startsWith('^') || flags.includes('m') || simple.includes('|')) return false
  // In a group, a quantifier of the group may repeat it.
  return !/\)[*+?{]/.test(simple)
}
