import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { kinds } from '#core/api/kind.ts'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'

const root = path.resolve(import.meta.dirname, '../..')

/** Literal prefixes where an ID is made (`newId('gen')`), compared (`startsWith('gen_')`) or put together (`gen_${…}`). */
const PREFIX = /\b(?:newId|idFloor)\(['"`](\w+)['"`]|\bstartsWith\(['"`](\w+)_['"`]\)|`(\w+)_\$\{/g
const COMPARED_DETAIL = /\baudit\.detail\.\w+ [=!]==/g

describe('rules that are declared in one place', () => {
  before(() => loadModules(modules))

  const matches = (pattern: RegExp) =>
    fs
      .globSync(['src/**/*.ts', 'jobs/**/*.ts'], { cwd: root })
      .flatMap(file =>
        [...fs.readFileSync(path.join(root, file), 'utf8').matchAll(pattern)].map(match => ({ file, match })),
      )

  it('include the prefix of IDs of a kind: other code names the kind', () => {
    const declared = new Set(kinds.all().map(({ prefix }) => prefix))
    const literals = matches(PREFIX).filter(({ match: [, made, compared, joined] }) =>
      declared.has(made ?? compared ?? joined),
    )
    assert.deepEqual(
      literals.map(({ file, match: [text] }) => `${file}: ${text}`),
      [],
    )
  })

  it('include the surface of a call, which is in its context: nothing depends on what the audit entry will say', () => {
    assert.deepEqual(
      matches(COMPARED_DETAIL).map(({ file }) => file),
      [],
    )
  })
})
