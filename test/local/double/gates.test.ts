import assert from 'node:assert/strict'
import { request } from 'node:http'
import { startDouble } from '#local/double/server.ts'
import { forSuite } from '../../support/suite.ts'
import { client, until } from './client.ts'

describe('model double: gates', () => {
  const double = forSuite(startDouble)
  const api = forSuite(() => client(double))

  const open = (gate: string) => api.read('POST', `/control/gates/${gate}/open`)
  const waiting = (gate: string, count: number) => until(async () => (await api.gate(gate))?.waiting === count)

  it('a gate is closed when a script first names it, and keeps its state when named again', async () => {
    const script = { rules: [{ reply: { gate: 'g1' } }], defaults: { gate: 'g2' }, embeddings: { gate: 'g3' } }
    await api.put('naming', script)
    for (const gate of ['g1', 'g2', 'g3']) assert.deepEqual(await api.gate(gate), { gate, open: false, waiting: 0 })
    await open('g1')
    await api.put('naming', script)
    assert.equal((await api.gate('g1'))?.open, true)
  })

  it('all waiting requests continue in arrival order', async () => {
    await api.put('queue', { fallback: { text: '{{call}}', gate: 'queue-gate' } })
    const order: string[] = []
    const answers: Promise<unknown>[] = []
    for (let count = 1; count <= 5; count += 1) {
      answers.push(api.text('queue').then(text => order.push(text)))
      await waiting('queue-gate', count)
    }
    await open('queue-gate')
    await Promise.all(answers)
    assert.deepEqual(order, ['1', '2', '3', '4', '5'])
  })

  it('close holds the next requests again', async () => {
    await api.put('again', { fallback: { text: 'x', gate: 'again-gate' } })
    await open('again-gate')
    assert.equal(await api.text('again'), 'x')
    assert.equal((await api.read('POST', '/control/gates/again-gate/close')).open, false)
    const held = api.text('again')
    await waiting('again-gate', 1)
    await open('again-gate')
    assert.equal(await held, 'x')
  })

  it('with gate_after a stream waits after that many pieces', async () => {
    await api.put('after', { fallback: { text: 'a b c', gate: 'after-gate', gate_after: 2 } })
    const response = await api.chat({ stream: true }, { 'x-double-lane': 'after' })
    const reader = response.body!.getReader()
    await waiting('after-gate', 1)
    let seen = ''
    while (!seen.includes('"b "')) seen += Buffer.from((await reader.read()).value!)
    assert.ok(seen.includes('"a "') && !seen.includes('"c"'))
    await open('after-gate')
    let rest = ''
    for (let part = await reader.read(); !part.done; part = await reader.read()) rest += Buffer.from(part.value)
    assert.ok(rest.includes('"c"') && rest.endsWith('[DONE]\n\n'))
  })

  it('with gate_after an answer that is not streamed waits before it', async () => {
    await api.put('whole', { fallback: { text: 'x', gate: 'whole-gate', gate_after: 2 } })
    const held = api.text('whole')
    await waiting('whole-gate', 1)
    await open('whole-gate')
    assert.equal(await held, 'x')
  })

  it('a failure can be gated', async () => {
    await api.put('fail', { fallback: { error: { status: 500 }, gate: 'fail-gate' } })
    const held = api.chat('x', { 'x-double-lane': 'fail' })
    await waiting('fail-gate', 1)
    await open('fail-gate')
    assert.equal((await held).status, 500)
  })

  it('a held request whose client leaves no longer waits and is logged aborted', async () => {
    await api.put('left', { fallback: { text: 'x', gate: 'left-gate' } })
    const held = request(`${double.url}/v1/chat/completions`, { method: 'POST', headers: { 'x-double-lane': 'left' } })
    held.on('error', () => {})
    held.end(JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'x' }] }))
    await waiting('left-gate', 1)
    assert.deepEqual(
      (await api.requests('left')).map(each => [each.status, each.aborted]),
      [[null, false]],
    )
    held.destroy()
    await waiting('left-gate', 0)
    assert.deepEqual(
      (await api.requests('left')).map(each => [each.status, each.aborted]),
      [[null, true]],
    )
  })

  it('dropping the lane and reset let held requests go', async () => {
    await api.put('drop', { fallback: { text: 'x', gate: 'drop-gate' } })
    const dropped = api.text('drop')
    await waiting('drop-gate', 1)
    await api.read('DELETE', '/control/lanes/drop')
    assert.equal(await dropped, 'x')
    assert.equal(await api.gate('drop-gate'), undefined)

    await api.put('reset', { fallback: { text: 'y', gate: 'reset-gate' } })
    const released = api.text('reset')
    await waiting('reset-gate', 1)
    await api.read('POST', '/control/reset')
    assert.equal(await released, 'y')
  })

  it('dropping a lane leaves the requests of another at a shared gate', async () => {
    for (const lane of ['s1', 's2']) await api.put(lane, { fallback: { text: lane, gate: 'shared' } })
    const [one, two] = [api.text('s1'), api.text('s2')]
    await waiting('shared', 2)
    await api.read('DELETE', '/control/lanes/s1')
    assert.equal(await one, 's1')
    assert.equal((await api.gate('shared'))?.waiting, 1)
    await open('shared')
    assert.equal(await two, 's2')
  })

  it('close of the double ends held requests', async () => {
    const other = await startDouble({ scripts: [{ lane: 'default', fallback: { gate: 'never' } }] })
    const held = client(other).chat('x')
    const ended = assert.rejects(held)
    await until(async () => (await client(other).gate('never'))?.waiting === 1)
    await other.close()
    await other.close()
    await ended
  })
})
