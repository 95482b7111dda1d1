import assert from 'node:assert/strict'
import { runDrill } from '#local/drills/drill.ts'
import { KINDS } from '#local/drills/kinds.ts'
import { toMarkdown } from '#local/drills/report.ts'
import { upgrade } from '#local/drills/upgrade.ts'
import { serverUrl } from '../support/postgres.ts'

describe('an upgrade process by process under load, and back', function () {
  this.timeout(600_000)

  it('loses, doubles and refuses nothing', async () => {
    const report = await runDrill(upgrade, { seconds: 1, databaseUrl: await serverUrl() })
    assert.ok(report.held, toMarkdown(report))
    const checked = report.promises.map(({ name }) => name)
    for (const name of ['nothing-lost', 'nothing-doubled', 'available', 'stops-cleanly', 'no-dead-letters'] as const)
      assert.ok(checked.includes(name), name)
    assert.deepEqual(
      report.kinds.filter(({ acknowledged }) => acknowledged < 20).map(({ kind }) => kind),
      [],
    )
    assert.deepEqual(
      report.kinds.map(({ kind }) => kind),
      KINDS.map(({ name }) => name),
    )
  })
})
