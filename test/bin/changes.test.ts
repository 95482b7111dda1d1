import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { collectChanges, readFragment, readFragments } from '../../scripts/collect-changes.ts'

const root = path.resolve(import.meta.dirname, '../..')

describe('fragments of the changelog', () => {
  let checkout: string
  beforeEach(() => {
    checkout = fs.mkdtempSync(path.join(tmpdir(), 'muster-changes-'))
    for (const folder of ['changes', 'sql', 'test/core']) fs.mkdirSync(path.join(checkout, folder), { recursive: true })
  })
  afterEach(() => fs.rmSync(checkout, { recursive: true }))

  const write = (file: string, text: string) => fs.writeFileSync(path.join(checkout, file), text)
  const changelog = () => fs.readFileSync(path.join(checkout, 'CHANGELOG.md'), 'utf8')

  it('in this checkout are valid', () => {
    readFragments(path.join(root, 'changes'))
  })

  it('have the version of the packages as the newest section', () => {
    const [, newest] =
      /^## (\S+) - \d{4}-\d\d-\d\d$/m.exec(fs.readFileSync(path.join(root, 'CHANGELOG.md'), 'utf8')) ?? []
    for (const folder of ['.', 'client', 'console'])
      assert.equal(JSON.parse(fs.readFileSync(path.join(root, folder, 'package.json'), 'utf8')).version, newest)
    const { packages } = JSON.parse(fs.readFileSync(path.join(root, 'package-lock.json'), 'utf8'))
    assert.deepEqual(
      ['', 'client', 'console'].map(each => packages[each]?.version),
      [newest, newest, newest],
    )
  })

  it('are collected under the version, by kind, then area, and deleted', () => {
    write('CHANGELOG.md', '# Changelog\n\nAll changes.\n\n## 0.1.0 - 2026-11-30\n\n### Added\n\n- The first release.\n')
    write('changes/memory-dates.md', '### Fixed\n\nDates of facts\nare dates.\n')
    write('changes/content-pages.md', '### Fixed\n\nPages have numbers.\n')
    write('changes/console-tour.md', '### Added\n\nA tour.\n')
    assert.equal(collectChanges(checkout, '0.2.0', '2026-12-31'), 3)
    assert.equal(
      changelog(),
      `# Changelog

All changes.

## 0.2.0 - 2026-12-31

### Added

- A tour.

### Fixed

- Pages have numbers.
- Dates of facts
  are dates.

## 0.1.0 - 2026-11-30

### Added

- The first release.
`,
    )
    assert.deepEqual(fs.readdirSync(path.join(checkout, 'changes')), [])
  })

  it('release the migrations, whose checksums are recorded', () => {
    write('CHANGELOG.md', '# Changelog\n')
    write('changes/core-limit.md', '### Added\n\nA limit.\n')
    write('sql/0001_core.sql', 'abc')
    collectChanges(checkout, '0.1.0', '2026-11-30')
    assert.deepEqual(JSON.parse(fs.readFileSync(path.join(checkout, 'test/core/released-migrations.json'), 'utf8')), {
      '0001_core': 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad',
    })
  })

  it('follow the migrations that are new in the version, by their effect on a running deployment', () => {
    write('CHANGELOG.md', '# Changelog\n')
    write('test/core/released-migrations.json', '{"0001_core": "x"}')
    for (const [name, header] of [
      ['0001_core', 'true'],
      ['0002_next', 'false'],
      ['0003_later', 'true'],
      ['0004_index', 'false, transaction: none'],
    ])
      write(`sql/${name}.sql`, `-- breaking: ${header}\n\nselect 1;\n`)
    write('changes/core-limit.md', '### Added\n\nA limit.\n')
    collectChanges(checkout, '0.2.0', '2026-12-31')
    assert.match(
      changelog(),
      /2026-12-31\n\nStop [^\n]+: breaking migrations `0003_later`\.\n\n[^\n]+: `0002_next`\.\n\n[^\n]+: `0004_index`\.\n\n### Added/,
    )
  })

  it('follow the entries without a version, which become the version', () => {
    write('CHANGELOG.md', '# Changelog\n\n## Unreleased\n\n### Added\n\n- An entry.\n\n### Fixed\n\n- A mistake.\n')
    write('changes/core-limit.md', '### Added\n\nA limit.\n')
    collectChanges(checkout, '0.1.0', '2026-11-30')
    assert.equal(
      changelog(),
      '# Changelog\n\n## 0.1.0 - 2026-11-30\n\n### Added\n\n- An entry.\n- A limit.\n\n### Fixed\n\n- A mistake.\n',
    )
  })

  it('are refused without a known area, a kind or exactly one paragraph', () => {
    for (const [file, text, problem] of [
      ['kitchen-sink.md', '### Fixed\n\nIt drains.\n', /unknown area kitchen/],
      ['memory.md', '### Fixed\n\nIt remembers.\n', /the name is not/],
      ['memory-dates.md', '### Repaired\n\nDates.\n', /starts with none of/],
      ['memory-dates.md', 'Dates.\n', /starts with none of/],
      ['memory-dates.md', '### Fixed\n', /has 0 paragraphs/],
      ['memory-dates.md', '### Fixed\n\nDates.\n\nTimes.\n', /has 2 paragraphs/],
      ['memory-dates.md', '### Fixed\n\n- Dates.\n', /is not plain text/],
    ] as const)
      assert.throws(() => readFragment(file, text), problem)
  })

  it('stay, with the changelog, when a release is refused', () => {
    const before = '# Changelog\n\n## 0.1.0 - 2026-11-30\n\n### Added\n\n- The first release.\n'
    write('CHANGELOG.md', before)
    assert.throws(() => collectChanges(checkout, '0.2.0', '2026-12-31'), /has no fragment/)
    write('changes/core-limit.md', '### Added\n\nA limit.\n')
    assert.throws(() => collectChanges(checkout, '0.1.0', '2026-11-30'), /has a section 0\.1\.0/)
    assert.throws(() => collectChanges(checkout, 'next', '2026-11-30'), /next is not a version/)
    assert.throws(() => collectChanges(checkout, '0.2.0', '31.12.2026'), /31\.12\.2026 is not a date/)
    write('changes/memory-two.md', '### Added\n\nOne.\n\nTwo.\n')
    assert.throws(() => collectChanges(checkout, '0.2.0', '2026-12-31'), /changes\/memory-two\.md/)
    assert.equal(changelog(), before)
    assert.deepEqual(fs.readdirSync(path.join(checkout, 'changes')), ['core-limit.md', 'memory-two.md'])
  })
})
