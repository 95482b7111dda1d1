import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { loadConfig } from '#config.ts'
import { program } from '#operator/program.ts'
import { settingsEnvironment, withSettings } from '#operator/settings.ts'

const root = path.resolve(import.meta.dirname, '../..')
const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')

const pages = ['.', 'docs', 'examples'].flatMap(folder =>
  fs
    .readdirSync(path.join(root, folder))
    .filter(name => name.endsWith('.md'))
    .map(name => path.join(folder, name)),
)

describe('the pages', () => {
  it('have the settings that there are; npm run docs writes them', () => {
    assert.equal(read('docs/operations.md'), withSettings(read('docs/operations.md')))
    assert.equal(read('.env.example'), settingsEnvironment())
  })

  it('.env.example is an environment, with the values that are used without it', () => {
    const lines = read('.env.example')
      .split('\n')
      .map(line => /^#?([A-Z_]+)=(?:'(.*)'|(.*))$/.exec(line))
      .filter(match => match !== null)
    assert.ok(lines.length > 100)
    const env = Object.fromEntries(lines.map(([, name, quoted, bare]) => [name, quoted ?? bare]))
    const given = loadConfig(env)
    const { JWT_SECRET: _, INSTANCE_ID: __, ...others } = loadConfig({})
    for (const [name, value] of Object.entries(others))
      if (!name.startsWith('DATABASE_')) assert.deepEqual(given[name as keyof typeof given], value, name)
  })

  it('link to files and headings that exist', () => {
    const slug = (heading: string) =>
      heading
        .toLowerCase()
        .replace(/[^\w\- ]/g, '')
        .replaceAll(' ', '-')
    for (const page of pages)
      for (const [, link] of read(page).matchAll(/\]\((?!https?:)([^)\s]+)\)/g)) {
        const [file, anchor] = link.split('#')
        const target = file === '' ? page : path.join(path.dirname(page), file)
        assert.ok(fs.existsSync(path.join(root, target)), `${page}: ${link}`)
        if (anchor === undefined) continue
        const headings = [...read(target).matchAll(/^#+ (.*)$/gm)].map(([, heading]) => slug(heading))
        assert.ok(headings.includes(anchor), `${page}: ${link}`)
      }
  })

  it('name files and functions that exist', () => {
    const folders = [
      'src',
      'bin',
      'cli/src',
      'client/build',
      'client/src',
      'console/src',
      'jobs',
      'scripts',
      'sql',
      'test',
    ]
    const files = folders.flatMap(folder =>
      fs.readdirSync(path.join(root, folder), { recursive: true, encoding: 'utf8' }).map(name => `${folder}/${name}`),
    )
    /** A path is given from the root, from src, or from the folder of its section. */
    const found = (name: string) => files.filter(file => `/${file}`.endsWith(`/${name}`))
    const missing: string[] = []
    for (const page of pages.filter(name => name !== 'CHANGELOG.md')) {
      const text = read(page).replace(/^```.*?^```$/gms, '')
      for (const [, name] of text.matchAll(/`([\w./-]+\.(?:tsx?|mjs)|[\w./-]+\/[\w-]+\.sql)`/g))
        if (!fs.existsSync(path.join(root, name)) && found(name).length === 0) missing.push(`${page}: ${name}`)
      for (const [, name] of text.matchAll(/`([a-z-]+\/[\w./-]*)`/g))
        if (fs.existsSync(path.join(root, 'src', name.split('/')[0])))
          if (!['src', 'test', '.'].some(folder => fs.existsSync(path.join(root, folder, name))))
            missing.push(`${page}: ${name}`)
      for (const [, name, file] of text.matchAll(/`([A-Za-z][\w.]*)`\s+\(`([\w./-]+\.tsx?)`/g)) {
        const words = name.split('.')
        if (!found(file).some(each => words.every(word => read(each).split(/\W+/).includes(word))))
          missing.push(`${page}: ${name} (${file})`)
      }
    }
    assert.deepEqual(missing, [])
  })

  it('are all on the start page of the documentation', () => {
    const start = read('docs/index.md')
    const missing = fs
      .readdirSync(path.join(root, 'docs'))
      .filter(name => name.endsWith('.md') && name !== 'index.md' && !start.includes(`](${name})`))
    assert.deepEqual(missing, [])
  })

  it('start with a README that is read in one sitting', () => {
    assert.ok(read('README.md').split('\n').length <= 151)
  })

  it('explain each package that is replaced by an empty one', () => {
    const { overrides } = JSON.parse(read('package.json'))
    const replaced = Object.entries(overrides).flatMap(([name, value]) =>
      (typeof value === 'string' ? [[name, value]] : Object.entries(value as Record<string, string>))
        .filter(([, version]) => /skip-dependency/.test(version))
        .map(([each]) => each),
    )
    assert.ok(replaced.length > 0 && replaced.length <= 3, replaced.join())
    for (const name of replaced) assert.ok(read('CONTRIBUTING.md').includes(`\`${name}\``), name)
  })

  it('name every benchmark', () => {
    const [, table = ''] = /^\| Benchmark \| .*\n.*\n((?:\|.*\n)+)/m.exec(read('docs/benchmarks.md')) ?? []
    const names = [...table.matchAll(/^\| `([\w-]+)` \|/gm)].map(([, name]) => name)
    const [, ...keys] = /^const all = \{\n(.*?)^\}/ms.exec(read('test/bench/run.ts')) ?? []
    assert.deepEqual(
      names,
      [...keys.join().matchAll(/^ {2}'?([\w-]+)'?: async/gm)].map(([, name]) => name),
    )
  })

  it('name every command', () => {
    const page = read('docs/cli.md')
    for (const command of program().commands) assert.ok(page.includes(`\`${command.name()}`), command.name())
  })
})
