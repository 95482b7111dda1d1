import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { coalescedLookups, openResolver, type Resolve } from '#core/net/resolver.ts'
import { type NameServer, startNameServer } from '../support/dns.ts'

describe('resolving names', () => {
  const directory = mkdtempSync(path.join(tmpdir(), 'muster-names-'))
  let names: NameServer
  let files = 0
  beforeEach(async () => {
    names = await startNameServer(() => 'unknown')
  })
  afterEach(() => names.close())
  after(() => rmSync(directory, { recursive: true }))

  /** A resolver on a system with this hosts file and this configuration next to its name server. */
  function on(hosts = '', config = ''): Resolve {
    const [hostsFile, configFile] = ['hosts', 'resolv'].map(name => path.join(directory, `${name}${++files}`))
    writeFileSync(hostsFile, hosts)
    writeFileSync(configFile, config)
    return openResolver({ servers: names.address, hostsFile, configFile })
  }

  it('returns the addresses of both families, IPv4 first', async () => {
    names.answer = () => ['2001:db8::1', '192.0.2.1', '192.0.2.2']
    assert.deepEqual(await on()('both.test'), ['192.0.2.1', '192.0.2.2', '2001:db8::1'])
    names.answer = () => ['2001:db8::1']
    assert.deepEqual(await on()('six.test'), ['2001:db8::1'])
    names.answer = () => Array.from({ length: 60 }, (_, n) => `192.0.2.${n}`)
    assert.equal((await on()('many.test')).length, 32)
  })

  it('returns the addresses of one family if the other fails or times out', async () => {
    names.answer = (_name, type) => (type === 'A' ? ['192.0.2.1'] : 'silent')
    assert.deepEqual(await on()('a.test'), ['192.0.2.1'])
    names.answer = (_name, type) => (type === 'A' ? 'broken' : ['2001:db8::1'])
    assert.deepEqual(await on()('b.test'), ['2001:db8::1'])
  })

  it('fails for an unknown name, one without address, and a failing or unresponsive server', async () => {
    await assert.rejects(on()('no.test'), { message: 'no.test does not resolve: ENOTFOUND' })
    names.answer = () => []
    await assert.rejects(on()('no.test'), { message: 'no.test does not resolve: ENODATA' })
    names.answer = () => 'broken'
    await assert.rejects(on()('no.test'), { message: 'no.test does not resolve: ESERVFAIL' })
    names.answer = () => 'silent'
    await assert.rejects(on()('no.test'), { message: 'no.test does not resolve: ETIMEOUT' })
  })

  it('repeats a query when the response is lost', async () => {
    const seen = new Set<string>()
    names.answer = (name, type) => {
      if (seen.has(type)) return ['192.0.2.1']
      seen.add(type)
      return name ? 'silent' : 'broken'
    }
    assert.deepEqual(await on()('lost.test'), ['192.0.2.1'])
  })

  it('reads the hosts file first, and resolves localhost to loopback', async () => {
    const resolve = on('# comment\n127.0.0.1 localhost\n192.0.2.7\tNamed.test alias # and why\n::7 named.test\nx y\n')
    assert.deepEqual(await resolve('named.test'), ['192.0.2.7', '::7'])
    assert.deepEqual(await resolve('alias'), ['192.0.2.7'])
    assert.deepEqual(await resolve('named.test.'), ['192.0.2.7', '::7'])
    assert.deepEqual(await resolve('localhost'), ['127.0.0.1'])
    assert.deepEqual(await on()('localhost'), ['127.0.0.1', '::1'])
    assert.deepEqual(await on()('any.localhost'), ['127.0.0.1', '::1'])
    assert.deepEqual(names.asked, [])
  })

  it('applies the search list before or after the unqualified name', async () => {
    names.answer = name => (name === 'tools.corp.test' || name === 'a.b.c' ? ['192.0.2.1'] : 'unknown')
    const config = 'nameserver 192.0.2.53\nsearch dev.test corp.test\noptions timeout:1 ndots:2\n'
    assert.deepEqual(await on('', config)('tools'), ['192.0.2.1'])
    const tried = () => [...new Set(names.asked.splice(0).map(question => question.split(' ')[1]))]
    assert.deepEqual(tried(), ['tools.dev.test', 'tools.corp.test'])
    assert.deepEqual(await on('', config)('a.b.c'), ['192.0.2.1'])
    assert.deepEqual(tried(), ['a.b.c'])
    await assert.rejects(on('', config)('tools.'))
    assert.deepEqual(tried(), ['tools'])
    // The search list is the operator's: its content is private.
    await assert.rejects(on('', config)('x.y'), { message: 'x.y does not resolve: ENOTFOUND' })
    assert.deepEqual(tried(), ['x.y.dev.test', 'x.y.corp.test', 'x.y'])
  })

  it('refuses an invalid name server', () => {
    for (const servers of ['ns.test', '192.0.2.1:x', '192.0.2.1,,x']) assert.throws(() => openResolver({ servers }))
    openResolver({ servers: ' 192.0.2.1 , 192.0.2.2:5353,[2001:db8::1]:53' })
  })
})

describe('lookups of many projects', () => {
  /** A resolver whose answers are given by the test. */
  function byHand() {
    const running = new Map<string, { resolve(addresses: string[]): void; reject(error: Error): void }>()
    const begun: string[] = []
    const lookup = coalescedLookups(name => {
      begun.push(name)
      return new Promise((resolve, reject) => running.set(name, { resolve, reject }))
    })
    return { running, begun, lookup }
  }

  it('share running lookups, and results for a second', async () => {
    const { running, begun, lookup } = byHand()
    const both = [lookup('x.test', { tenant: 'a' }), lookup('x.test', { tenant: 'b' })]
    await sleep(0)
    running.get('x.test')?.resolve(['192.0.2.1'])
    assert.deepEqual(await Promise.all(both), [['192.0.2.1'], ['192.0.2.1']])
    await lookup('x.test', {})
    assert.deepEqual(begun, ['x.test'])
    await sleep(1050)
    void lookup('x.test', {})
    await sleep(0)
    assert.deepEqual(begun, ['x.test', 'x.test'])
  })

  it('cache a failure for two seconds', async () => {
    const { running, begun, lookup } = byHand()
    const first = lookup('x.test', {})
    await sleep(0)
    running.get('x.test')?.reject(new Error('no'))
    await assert.rejects(first, /^Error: no$/)
    await sleep(1000)
    await assert.rejects(lookup('x.test', { tenant: 'b' }), /^Error: no$/)
    assert.equal(begun.length, 1)
    await sleep(1050)
    void lookup('x.test', {})
    await sleep(0)
    assert.equal(begun.length, 2)
  })

  it('wait only for lookups of their project', async () => {
    const { running, begun, lookup } = byHand()
    for (let each = 0; each < 32; each++) void lookup(`${each}.test`, { tenant: 'a' })
    let waits = 0
    const own = lookup('wanted.test', { tenant: 'a', onWait: () => waits++, onStart: () => waits-- })
    await sleep(0)
    assert.deepEqual([begun.length, waits], [32, 1])
    const other = lookup('wanted.test', { tenant: 'b' })
    await sleep(0)
    assert.equal(begun.at(-1), 'wanted.test')
    running.get('wanted.test')?.resolve(['192.0.2.1'])
    assert.deepEqual(await other, ['192.0.2.1'])
    running.get('7.test')?.resolve([])
    assert.deepEqual(await own, ['192.0.2.1'])
    assert.deepEqual([begun.length, waits], [33, 0])
  })

  it('are not started for a caller that is gone', async () => {
    const { running, begun, lookup } = byHand()
    for (let each = 0; each < 32; each++) void lookup(`${each}.test`, {})
    const controller = new AbortController()
    const left = lookup('left.test', { signal: controller.signal })
    controller.abort()
    await sleep(0)
    running.get('7.test')?.resolve([])
    await assert.rejects(left)
    assert.equal(begun.includes('left.test'), false)
  })
})
