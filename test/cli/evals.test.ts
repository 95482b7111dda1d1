import assert from 'node:assert/strict'
import { item, startEvalApp } from '../evaluation/support.ts'
import { forSuite } from '../support/suite.ts'
import { User } from './support.ts'

describe('eval runs on the command line', function () {
  this.timeout(60_000)
  const app = forSuite(startEvalApp)
  const user = forSuite(() => new User(app.url, app.key.token))

  it('end with 11 where the run did not pass, with 0 where it passed or has no threshold', async () => {
    const agent_id = await app.echo('verdict')
    const dataset_id = await app.dataset([item('a', 'Yes'), item('b', 'No')])
    const run = async (pass_threshold: number | null) => {
      const { id } = await app.eval({ agent_id, dataset_id, scorers: [{ type: 'exact_match' }], pass_threshold })
      const { code, stdout, stderr } = await user.run(['evals', 'runs', 'create', id, '--wait'])
      const { passed, eval_id, ...record } = JSON.parse(stdout)
      assert.deepEqual([eval_id, record.status], [id, 'completed'])
      return { code, passed, stderr, runId: record.id }
    }
    const failed = await run(0.9)
    assert.deepEqual([failed.code, failed.passed], [11, false])
    assert.match(failed.stderr, new RegExp(`${failed.runId} did not pass`))
    for (const [threshold, verdict] of [
      [0.5, true],
      [null, null],
    ] as const) {
      const { code, passed } = await run(threshold)
      assert.deepEqual([code, passed], [0, verdict])
    }
  })
})
