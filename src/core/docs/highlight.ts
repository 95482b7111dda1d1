import { createRequire } from 'node:module'

/** Highlights code of pages. */

type Highlighter = {
  registerLanguage(name: string, language: unknown): void
  getLanguage(name: string): unknown
  highlight(text: string, options: { language: string }): { value: string }
}

// Not imported: its types would declare the globals of browsers for all code.
const require = createRequire(import.meta.url)
const highlighter: Highlighter = require('highlight.js/lib/core')

for (const [name, file] of [
  ['sh', 'bash'],
  ['json', 'json'],
  ['python', 'python'],
  ['ts', 'typescript'],
])
  highlighter.registerLanguage(name, require(`highlight.js/lib/languages/${file}`))

const ALIASES: Record<string, string> = { bash: 'sh', js: 'ts', typescript: 'ts', javascript: 'ts' }

/** Returns code as HTML; empty if the language has no highlighting. */
export function highlight(text: string, language: string): string {
  const name = ALIASES[language] ?? language
  return highlighter.getLanguage(name) ? highlighter.highlight(text, { language: name }).value : ''
}
