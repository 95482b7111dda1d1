/** Prints the size of the code by measures that a change should not make worse: `npm run figures`. */
import fs from 'node:fs'
import path from 'node:path'
import { filesIn, forbiddenWords } from './prose.ts'

const root = path.resolve(import.meta.dirname, '../..')

const textOf = (file: string): string => fs.readFileSync(file, 'utf8')
const linesOf = (files: readonly string[]): number =>
  files.reduce((sum, file) => sum + textOf(file).split('\n').length - 1, 0)

const source = filesIn(path.join(root, 'src')).filter(file => file.endsWith('.ts'))
const sql = filesIn(path.join(root, 'sql'))
const declaring = (pattern: RegExp): number =>
  source.reduce((sum, file) => sum + [...textOf(file).matchAll(pattern)].length, 0)

const figures: Record<string, number> = {
  'lines in src': linesOf(source),
  'files in src': source.length,
  'files in src of at most 25 lines': source.filter(file => linesOf([file]) <= 25).length,
  'longest file in src': Math.max(...source.map(file => linesOf([file]))),
  'kinds of work on the engine (core/work)': declaring(/ = work\(\{/g),
  'lines in sql': linesOf(sql),
  'files in sql': sql.length,
  'forbidden words': forbiddenWords(['src', 'jobs', 'bin', 'docs', 'README.md', 'CONTRIBUTING.md']).length,
}

for (const [name, value] of Object.entries(figures)) console.log(`${String(value).padStart(8)}  ${name}`)
