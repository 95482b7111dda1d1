import assert from 'node:assert/strict'
import type { Outgoing } from '../../src/core/db/write.ts'
import { activityFeed, type ShareActivity } from '../../src/execution/shares/activity.ts'
import { eventually, startApp, type TestApp, type TestProject } from '../support/app.ts'
import { loadBeside } from '../support/modules.ts'
import { accepted, PUBLISHING, shared, USING } from './share-support.ts'
import { call, made, startTarget, type Target } from './tool-target.ts'

describe('what projects are told of shares that they use', () => {
  let app: TestApp
  let target: Target
  let publisher: TestProject
  let grantee: TestProject
  let told: ShareActivity[] = []
  let restore: () => void

  before(async () => {
    target = await startTarget()
    restore = loadBeside({
      extensions: [
        activityFeed.with({
          record: (_services, entry) => void told.push(entry),
          add: (outgoing: Outgoing, entry) => outgoing.afterCommit(() => void told.push(entry)),
        }),
      ],
    })
    app = await startApp()
    publisher = await app.projectWith(PUBLISHING)
    grantee = await app.projectWith(USING)
  })
  after(async () => {
    await app?.close()
    restore?.()
    await target?.close()
  })
  beforeEach(() => {
    told = []
  })

  async function usable(terms: Record<string, unknown> = {}) {
    const { id } = await made(publisher.key, { execute: { url: target.url } })
    const share = await shared(publisher.key, `srn:${publisher.id}:tool:${id}`, { grantee: grantee.id, ...terms })
    return { id, share, acceptance: await accepted(grantee.key, share.id) }
  }
  const kinds = () => told.map(({ kind }) => kind)

  it('names share, resource and publisher', async () => {
    const { share } = await usable()
    await publisher.key.post(`/shares/${share.id}/suspend`)
    const [{ project_id, kind, severity, ref_id, detail }] = told
    assert.deepEqual([project_id, kind, severity, ref_id], [grantee.id, 'share_suspended', 'warning', share.id])
    assert.deepEqual(detail, {
      share_id: share.id,
      resource: share.resource,
      publisher_project_id: publisher.id,
    })
  })

  it('once for each change, and only while it uses the share', async () => {
    const { share } = await usable()
    for (const verb of ['suspend', 'suspend', 'resume', 'resume', 'revoke', 'revoke'])
      await publisher.key.post(`/shares/${share.id}/${verb}`)
    assert.deepEqual(kinds(), ['share_suspended', 'share_resumed', 'share_revoked'])
    told = []
    const offered = await usable()
    await grantee.key.post(`/shares/${offered.share.id}/revoke`)
    await publisher.key.post(`/shares/${offered.share.id}/suspend`)
    await publisher.key.post(`/shares/${offered.share.id}/revoke`)
    assert.deepEqual(kinds(), [])
  })

  it('however its publisher ends it', async () => {
    const ends: ((made: Awaited<ReturnType<typeof usable>>) => Promise<{ status: number }>)[] = [
      ({ share }) => publisher.key.delete(`/shares/${share.id}`),
      ({ share, acceptance }) => publisher.key.post(`/shares/${share.id}/acceptances/${acceptance.id}/revoke`),
      ({ share, acceptance }) => publisher.key.delete(`/shares/${share.id}/acceptances/${acceptance.id}`),
      ({ id }) => publisher.key.delete(`/tools/${id}?force=true`),
    ]
    for (const end of ends) {
      told = []
      const { status } = await end(await usable())
      assert.ok(status < 300)
      assert.deepEqual(kinds(), ['share_revoked'])
    }
    const before = told.length
    await usable()
    assert.equal((await app.admin.delete(`/projects/${publisher.id}?force=true`)).status, 204)
    assert.ok(kinds().slice(before).includes('share_revoked'))
    publisher = await app.projectWith(PUBLISHING)
  })

  it('of each call that the cap refuses', async () => {
    const { id, share } = await usable({ cap: { calls: 1, window: 'calendar_month' } })
    for (let times = 0; times < 3; times++) await call(grantee.key, id)
    await eventually(() => told.length === 2)
    const [{ kind, project_id, ref_id, detail }] = told
    assert.deepEqual([kind, project_id, ref_id], ['share_cap_exceeded', grantee.id, share.id])
    assert.deepEqual([detail.calls, detail.window], [1, 'calendar_month'])
  })
})
