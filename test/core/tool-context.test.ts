import assert from 'node:assert/strict'
import { callerContext, mergeContext, ToolContextInput } from '#core/api/tool-context.ts'
import { AppError } from '#core/base/errors.ts'

describe('tool contexts', () => {
  const refused = (bag: Record<string, string>) => {
    try {
      callerContext(bag, 'X-Ctx-')
    } catch (error) {
      assert.ok(error instanceof AppError)
      assert.equal(error.code, 'INVALID_TOOL_CONTEXT_KEY')
      return error.meta
    }
    return null
  }

  it('keys are header names; all that are not are named', () => {
    assert.equal(refused({ "aZ09!#$%&'*+-.^_`|~": 'x' }), null)
    assert.deepEqual(refused({ 'a b': '', ok: '', 'ä:': '', '': '' }), { keys: ['a b', 'ä:', ''] })
  })

  it('two keys that are equal ignoring case clash', () => {
    assert.deepEqual(refused({ Tenant: '1', TENANT: '2' }), { keys: ['Tenant', 'TENANT'], header: 'X-Ctx-Tenant' })
  })

  it('what only the platform may say is dropped in any casing; other keys keep theirs', () => {
    const bag = { SESSIONID: '1', actorId: '2', ActorExternalID: '3', calling_project_id: '4', tenantId: '5' }
    assert.deepEqual(callerContext(bag, ''), { tenantId: '5' })
    assert.equal(callerContext(null, ''), null)
  })

  it('later layers win, also where only the casing differs', () => {
    const merged = mergeContext({ tenantId: 'a', region: 'eu' }, null, { TENANTID: 'b' }, { sessionId: 's' })
    assert.deepEqual(merged, { TENANTID: 'b', region: 'eu', sessionId: 's' })
  })

  it('bags are bounded: 64 keys, 8 KiB a value, 32 KiB of values, no line breaks', () => {
    const fits = (bag: Record<string, string>) => ToolContextInput.safeParse(bag).success
    const keys = (n: number, value: string) => Object.fromEntries([...Array(n).keys()].map(k => [`k${k}`, value]))
    assert.deepEqual([fits(keys(64, '')), fits(keys(65, ''))], [true, false])
    assert.deepEqual([fits({ a: 'ä'.repeat(4096) }), fits({ a: 'ä'.repeat(4097) })], [true, false])
    assert.deepEqual([fits(keys(4, 'x'.repeat(8192))), fits(keys(5, 'x'.repeat(8192)))], [true, false])
    assert.deepEqual([fits({ a: 'x\ny' }), fits({ a: 'x\ry' })], [false, false])
  })
})
