import assert from 'node:assert/strict'
import { eventually, startApp, type TestProject } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { accepted, PUBLISHING, shared, USING } from './share-support.ts'
import { call, made, startTarget } from './tool-target.ts'

describe('notifications of projects about shares that they use', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() => startApp({ together: true }))
  let publisher: TestProject
  let grantee: TestProject
  /** Entries that a test has seen. */
  const seen = new Set<string>()

  before(async () => {
    publisher = await app.projectWith(PUBLISHING)
    grantee = await app.projectWith(USING)
  })
  beforeEach(() => forget())

  /** The notifications of the grantee since, oldest first. */
  const told = async (): Promise<any[]> => {
    const { body } = await app.admin.get(`/activity?project_id=${grantee.id}&limit=100`)
    return body.data.filter(({ id }: { id: string }) => !seen.has(id)).reverse()
  }
  const forget = async () => {
    for (const { id } of await told()) seen.add(id)
  }

  async function usable(terms: Record<string, unknown> = {}) {
    const { id } = await made(publisher.key, { execute: { url: target.url } })
    const share = await shared(publisher.key, `srn:${publisher.id}:tool:${id}`, { grantee: grantee.id, ...terms })
    return { id, share, acceptance: await accepted(grantee.key, share.id) }
  }
  const kinds = async () => (await told()).map(({ kind }) => kind)

  it('names share, resource and publisher', async () => {
    const { share } = await usable()
    await publisher.key.post(`/shares/${share.id}/suspend`)
    const [{ project_id, kind, severity, ref_id, detail }] = await told()
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
    assert.deepEqual(await kinds(), ['share_suspended', 'share_resumed', 'share_revoked'])
    await forget()
    const offered = await usable()
    await grantee.key.post(`/shares/${offered.share.id}/revoke`)
    await publisher.key.post(`/shares/${offered.share.id}/suspend`)
    await publisher.key.post(`/shares/${offered.share.id}/revoke`)
    assert.deepEqual(await kinds(), [])
  })

  it('however its publisher ends it', async () => {
    const ends: ((made: Awaited<ReturnType<typeof usable>>) => Promise<{ status: number }>)[] = [
      ({ share }) => publisher.key.delete(`/shares/${share.id}`),
      ({ share, acceptance }) => publisher.key.post(`/shares/${share.id}/acceptances/${acceptance.id}/revoke`),
      ({ share, acceptance }) => publisher.key.delete(`/shares/${share.id}/acceptances/${acceptance.id}`),
      ({ id }) => publisher.key.delete(`/tools/${id}?force=true`),
    ]
    for (const end of ends) {
      await forget()
      const { status } = await end(await usable())
      assert.ok(status < 300)
      assert.deepEqual(await kinds(), ['share_revoked'])
    }
    const before = (await told()).length
    await usable()
    assert.equal((await app.admin.delete(`/projects/${publisher.id}?force=true`)).status, 204)
    assert.ok((await kinds()).slice(before).includes('share_revoked'))
    publisher = await app.projectWith(PUBLISHING)
  })

  it('of each call that the cap refuses', async () => {
    const { id, share } = await usable({ cap: { calls: 1, window: 'calendar_month' } })
    for (let times = 0; times < 3; times++) await call(grantee.key, id)
    await eventually(async () => (await told()).length === 2)
    const [{ kind, project_id, ref_id, detail }] = await told()
    assert.deepEqual([kind, project_id, ref_id], ['share_cap_exceeded', grantee.id, share.id])
    assert.deepEqual([detail.calls, detail.window], [1, 'calendar_month'])
  })
})
