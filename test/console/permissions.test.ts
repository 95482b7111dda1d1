import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')

describe('permissions in the console', () => {
  it('are taken from operations of the client, so that a renamed action is not forgotten', () => {
    const { paths } = JSON.parse(fs.readFileSync(path.join(root, 'client/openapi.json'), 'utf8'))
    const operations = Object.values<any>(paths).flatMap(item => Object.values<any>(item))
    const own = new Set(operations.map(each => each['x-iam-action']))
    const also = new Set(operations.flatMap(each => each['x-iam-also'] ?? []))
    const files = fs.globSync('console/src/**/*.{ts,tsx}', { cwd: root })
    const named = files.flatMap(file =>
      [...fs.readFileSync(path.join(root, file), 'utf8').matchAll(/['"`]([a-z-]+:[A-Z]\w+)['"`]/g)].map(
        ([, action]) => ({ file, action }),
      ),
    )
    assert.ok(files.length > 150 && own.size > 300, `${files.length} ${own.size}`)
    assert.deepEqual(
      named.filter(({ action }) => own.has(action)),
      [],
    )
    // A permission that several operations check besides their own.
    assert.deepEqual(
      named.filter(({ action }) => !also.has(action)),
      [],
    )
  })
})
