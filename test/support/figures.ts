/** Prints the size of the code by measures that a change should not make worse: `npm run figures`. */
import fs from 'node:fs'
import path from 'node:path'
import ts from 'typescript'
import { listExtensionPoints } from '#core/base/declarations.ts'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import { filesIn, forbiddenWords, PROSE, subjectFindings } from './prose.ts'

const root = path.resolve(import.meta.dirname, '../..')
const { floors } = (await import(`${root}/.dependency-cruiser.mjs`)) as {
  floors: Record<string, (string | string[])[]>
}

type Source = { file: string; text: string; lines: number }

const read = (folder: string, pattern = /\.tsx?$/): Source[] =>
  filesIn(path.join(root, folder))
    .filter(file => pattern.test(file))
    .map(full => {
      const text = fs.readFileSync(full, 'utf8')
      return { file: path.relative(root, full), text, lines: text.split('\n').length - 1 }
    })

const matchesIn = (sources: readonly Source[], pattern: RegExp): number =>
  sources.reduce((sum, { text }) => sum + [...text.matchAll(pattern)].length, 0)
const linesOf = (sources: readonly Source[]): number => sources.reduce((sum, { lines }) => sum + lines, 0)

/** Lines of each function with a body, nested ones included. */
function functionLengths(sources: readonly Source[]): number[] {
  const lengths: number[] = []
  for (const { file, text } of sources) {
    const tree = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true)
    const lineAt = (position: number) => tree.getLineAndCharacterOfPosition(position).line
    const visit = (node: ts.Node): void => {
      if (ts.isFunctionLike(node) && 'body' in node && node.body)
        lengths.push(lineAt(node.getEnd()) - lineAt(node.getStart()) + 1)
      ts.forEachChild(node, visit)
    }
    visit(tree)
  }
  return lengths
}

/** Sets of two or more floors of an area that import each other, directly or through others. */
function folderCircles(sources: readonly Source[]): number {
  const floorOf = (file: string): string | null => {
    const [, area, folder = ''] = /^src\/([^/]+)\/(?:([^/]+)\/)?/.exec(file) ?? []
    const at = floors[area!]?.findIndex(each => [each].flat().includes(folder || '.'))
    return at === undefined || at === -1 ? null : `${area}/${at}`
  }
  const imports = new Map<string, Set<string>>()
  for (const { file, text } of sources) {
    const from = floorOf(file)
    for (const [, target] of text.matchAll(/(?:from |import\()'([#.][^']+)'/g)) {
      const full = target!.startsWith('#') ? `src/${target!.slice(1)}` : path.join(path.dirname(file), target!)
      const to = floorOf(full)
      if (!from || !to || from === to || from.split('/')[0] !== to.split('/')[0]) continue
      imports.set(from, (imports.get(from) ?? new Set()).add(to))
    }
  }
  const reached = (start: string): Set<string> => {
    const found = new Set<string>()
    const visit = (floor: string): void => {
      for (const next of imports.get(floor) ?? []) {
        if (found.has(next)) continue
        found.add(next)
        visit(next)
      }
    }
    visit(start)
    return found
  }
  const within = [...imports.keys()].filter(floor => reached(floor).has(floor))
  return new Set(
    within.map(floor =>
      within
        .filter(other => reached(floor).has(other))
        .toSorted()
        .join(),
    ),
  ).size
}

/** Lines of code before the first test of a file: without imports, comments and empty lines. */
function preambleLines({ text }: Source): number {
  const lines = text.replace(/^import[\s\S]*?'[^']*'$/gm, '').split('\n')
  const first = lines.findIndex(line => /^\s*it(?:\.\w+)?\(/.test(line))
  return lines.slice(0, first === -1 ? undefined : first).filter(line => !/^\s*(?:$|\/[/*]|\*)/.test(line)).length
}

const src = read('src')
const console_ = read('console/src')
const tests = read('test')
const sql = read('sql', /\.sql$/)
const ours = [...src, ...console_, ...tests, ...read('cli/src'), ...read('client/src'), ...read('bin'), ...read('jobs')]
const inSrc = functionLengths(src)
const inConsole = functionLengths(console_)
const longer = (lengths: readonly number[], than: number): number => lengths.filter(length => length > than).length

loadModules(modules)
const points = listExtensionPoints()
const areaOf = new Map(
  src.flatMap(({ file, text }) =>
    [...text.matchAll(/^export default module\('(.+)',/gm)].map(([, name]) => [name!, file.split('/')[1]!]),
  ),
)

const manifest = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8')) as { overrides?: object }

const figures: Record<string, number> = {
  'lines in src': linesOf(src),
  'files in src': src.length,
  'files in src of at most 25 lines': src.filter(({ lines }) => lines <= 25).length,
  'longest file in src': Math.max(...src.map(({ lines }) => lines)),
  'functions in src over 60 lines': longer(inSrc, 60),
  'functions in src over 100 lines': longer(inSrc, 100),
  'circles of folders in areas of src': folderCircles(src),
  modules: modules.length,
  'extension points': points.length,
  'extension points with one contributor': points.filter(({ contributors }) => contributors.length === 1).length,
  'extension points with one contributor, of their area': points.filter(
    ({ folder, contributors: [one, ...others] }) =>
      one !== undefined && others.length === 0 && areaOf.get(one) === folder.split('/')[0],
  ).length,
  'kinds of work on the engine (core/work)': matchesIn(src, / = work\(\{/g),
  'imports by ../../ in src': matchesIn(src, /(?:from |import\()'\.\.\/\.\.\//g),
  'imports by ../ from outside into src': matchesIn(ours, /(?:from |import\()'(?:\.\.\/)+src\//g),
  'lines in console': linesOf(console_),
  'functions in console over 60 lines': longer(inConsole, 60),
  'functions in console over 100 lines': longer(inConsole, 100),
  'literals of permissions in console': matchesIn(console_, /['"`][a-z][a-z-]*:[A-Z][A-Za-z]+['"`]/g),
  'casts of routes in console': matchesIn(
    console_,
    /(?:params|search|to)=\{[^{}]* as |use(?:Params|Search)\([^)]*\) as |navigate\([^)]* as /g,
  ),
  'lines in test': linesOf(tests),
  'lines of tests before their first case': tests
    .filter(({ file }) => file.endsWith('.test.ts'))
    .reduce((sum, source) => sum + preambleLines(source), 0),
  'lines in sql': linesOf(sql),
  migrations: sql.filter(({ file }) => /^sql\/\d{4}_/.test(file)).length,
  'forbidden words': forbiddenWords(PROSE).length,
  'subjects of commits to change': subjectFindings(root).length,
  'overrides in package.json': Object.keys(manifest.overrides ?? {}).length,
  'lines in README.md': read('README.md', /./)[0]!.lines,
}

for (const [name, value] of Object.entries(figures)) console.log(`${String(value).padStart(8)}  ${name}`)
