import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'

/**
 * Collects the fragments of `changes/` into CHANGELOG.md under a version, deletes them, and records the checksums of the
 * migrations, which are released with it and never edited again: `npm run changes -- 0.2.0 2026-12-31`.
 * A fragment is a file `<area>-<what>.md`: a heading with the kind, and one paragraph.
 */

const ROOT = path.resolve(import.meta.dirname, '..')

const RELEASED_MIGRATIONS = 'test/core/released-migrations.json'

/** Kinds of changes, in the order of a section. */
export const KINDS = ['Added', 'Changed', 'Deprecated', 'Removed', 'Fixed', 'Security']

/** Areas of fragments: the folders of src, and the parts next to it. */
export const areas = (): string[] => [
  ...fs
    .readdirSync(path.join(ROOT, 'src'), { withFileTypes: true })
    .filter(entry => entry.isDirectory())
    .map(entry => entry.name),
  'cli',
  'client',
  'console',
  'deploy',
  'docs',
]

/** A migration: it stops processes of the release before, holds locks for an instant, or runs online. */
type Migration = { name: string; kind: 'breaking' | 'brief' | 'online' }

type Fragment = { file: string; kind: string; lines: string[] }

/** Reads a fragment. @throws Error that names the file and its first problem */
export function readFragment(file: string, text: string): Fragment {
  const refuse = (problem: string): never => {
    throw new Error(`changes/${file}: ${problem}`)
  }
  const [, area = ''] = /^([a-z]+)-[a-z0-9-]+\.md$/.exec(file) ?? refuse('the name is not <area>-<what>.md')
  if (!areas().includes(area)) refuse(`unknown area ${area}; areas are ${areas().join(', ')}`)
  const [heading, ...paragraphs] = text.trim().split(/\n\s*\n/)
  const kind =
    KINDS.find(each => heading === `### ${each}`) ?? refuse(`starts with none of ### ${KINDS.join(', ### ')}`)
  if (paragraphs.length !== 1) refuse(`has ${paragraphs.length} paragraphs instead of one`)
  const lines = paragraphs[0].split('\n').map(line => line.trim())
  if (lines.some(line => /^([-*#>|]|\d+\.|```)/.test(line))) refuse('is not plain text')
  return { file, kind, lines }
}

/** Reads the fragments of a folder, in the order of their names. A folder without fragments may be missing. */
export const readFragments = (folder: string): Fragment[] =>
  fs.existsSync(folder)
    ? fs
        .readdirSync(folder)
        .sort()
        .map(file => readFragment(file, fs.readFileSync(path.join(folder, file), 'utf8')))
    : []

/** Returns the entries of a section by kind. @throws Error for a heading that is no kind */
function entriesOf(section: string): Map<string, string> {
  const [, ...parts] = `\n${section}`.split(/\n### /)
  return new Map(
    parts.map(part => {
      const [kind, ...lines] = part.split('\n')
      if (!KINDS.includes(kind)) throw new Error(`CHANGELOG.md: ### ${kind} is none of ${KINDS.join(', ')}`)
      return [kind, lines.join('\n').trim()]
    }),
  )
}

/**
 * Returns the changelog with a section for the version: its migrations, entries of a section `Unreleased`, which it replaces, then
 * the fragments.
 * @throws Error if the version has a section or nothing has changed
 */
export function withVersion(
  changelog: string,
  {
    version,
    date,
    fragments,
    migrations,
  }: Record<'version' | 'date', string> & {
    fragments: readonly Fragment[]
    migrations: readonly Migration[]
  },
): string {
  const [intro, ...sections] = changelog.split(/^## /m)
  const isOf = (section: string, name: string) => section.split(/\s/, 1)[0] === name
  if (sections.some(section => isOf(section, version))) throw new Error(`CHANGELOG.md has a section ${version}`)
  const unreleased = sections.find(section => isOf(section, 'Unreleased')) ?? ''
  const entries = entriesOf(unreleased)
  for (const { kind, lines } of fragments)
    entries.set(kind, `${entries.get(kind) ?? ''}\n- ${lines.join('\n  ')}`.trim())
  if (entries.size === 0) throw new Error('changes/ has no fragment')
  const lists = KINDS.filter(kind => entries.has(kind)).map(kind => `### ${kind}\n\n${entries.get(kind)}\n`)
  const namesOf = (kind: Migration['kind']) =>
    migrations
      .filter(each => each.kind === kind)
      .map(({ name }) => `\`${name}\``)
      .join(', ')
  const [breaking, brief, online] = [namesOf('breaking'), namesOf('brief'), namesOf('online')]
  const steps = [
    breaking && `Stop web and workers before the upgrade: breaking migrations ${breaking}.`,
    brief && `Migrations that lock tables briefly: ${brief}.`,
    online && `Migrations whose time grows with tables, without blocking: ${online}.`,
  ].filter(Boolean)
  const released = `${[`${version} - ${date}`, ...steps, lists.join('\n')].join('\n\n')}\n`
  const earlier = sections.filter(section => section !== unreleased)
  return `${[intro, released, ...earlier].join('## ').trimEnd()}\n`
}

/** Returns the migrations that are not released yet; none before the first release, which has no database to migrate. */
export function newMigrations(root: string): Migration[] {
  const recorded = path.join(root, RELEASED_MIGRATIONS)
  if (!fs.existsSync(recorded)) return []
  const earlier = JSON.parse(fs.readFileSync(recorded, 'utf8'))
  const directory = path.join(root, 'sql')
  const kindOf = (name: string): Migration['kind'] => {
    const [header] = fs.readFileSync(path.join(directory, `${name}.sql`), 'utf8').split('\n', 1)
    if (header.startsWith('-- breaking: true')) return 'breaking'
    return header.endsWith('transaction: none') ? 'online' : 'brief'
  }
  return Object.keys(migrationChecksums(directory))
    .filter(name => !(name in earlier))
    .map(name => ({ name, kind: kindOf(name) }))
}

/** Returns the checksums of the migrations of a directory by name, in their order. */
export const migrationChecksums = (directory: string): Record<string, string> =>
  Object.fromEntries(
    fs
      .readdirSync(directory)
      .sort()
      .map(file => [
        path.basename(file, '.sql'),
        createHash('sha256')
          .update(fs.readFileSync(path.join(directory, file)))
          .digest('hex'),
      ]),
  )

/** Collects the fragments of a checkout and records its migrations. @throws Error if an argument, a fragment or the changelog is invalid; nothing is changed then */
export function collectChanges(root: string, version = '', date = ''): number {
  if (!/^\d+\.\d+\.\d+(-[\w.]+)?$/.test(version)) throw new Error(`${version || 'nothing'} is not a version: 0.2.0`)
  if (Number.isNaN(Date.parse(date)) || !/^\d{4}-\d\d-\d\d$/.test(date))
    throw new Error(`${date || 'nothing'} is not a date: 2026-12-31`)
  const folder = path.join(root, 'changes')
  const changelog = path.join(root, 'CHANGELOG.md')
  const fragments = readFragments(folder)
  const migrations = newMigrations(root)
  const text = withVersion(fs.readFileSync(changelog, 'utf8'), { version, date, fragments, migrations })
  fs.writeFileSync(changelog, text)
  for (const { file } of fragments) fs.rmSync(path.join(folder, file))
  const checksums = migrationChecksums(path.join(root, 'sql'))
  fs.writeFileSync(path.join(root, RELEASED_MIGRATIONS), `${JSON.stringify(checksums, null, 2)}\n`)
  return fragments.length
}

if (process.argv[1] === import.meta.filename)
  try {
    const [version, date] = process.argv.slice(2)
    console.log(`${collectChanges(ROOT, version, date)} fragments are in CHANGELOG.md under ${version}`)
  } catch (error) {
    console.error((error as Error).message)
    process.exitCode = 1
  }
