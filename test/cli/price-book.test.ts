import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import path from 'node:path'
import { TOKEN_PART_NAMES } from '#control/usage/usage-draft.ts'
import { PROVIDER_TYPES } from '#execution/providers/model.ts'
import { pricesOf, readPriceBook } from '../../cli/src/price-book.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { User } from './support.ts'

const COMPONENTS = new Set<string>([
  'input_tokens',
  'cached_tokens',
  'cache_write_tokens',
  'output_tokens',
  'web_searches',
  ...TOKEN_PART_NAMES,
])

describe('muster prices import', function () {
  this.timeout(120_000)
  const app = forSuite(startApp)
  const project = forSuite(() => app.projectWith(['projects:GetProjectPrices', 'projects:ManageProjectPrices']))
  const admin = forSuite(() => new User(app.url, app.admin.token))
  const user = forSuite(() => new User(app.url, project.key.token))

  const bookFile = (name: string, input_tokens: number) => {
    const file = path.join(admin.directory, name)
    const prices = [
      {
        models: ['m-1', 'm-1-2026'],
        source: 'https://vendor.example/prices',
        as_of: '2026-11-01',
        prices: { input_tokens, output_tokens: 0.3, web_searches: 10 },
        above: { '200000': { input_tokens: 6 } },
        tiers: { priority: { input_tokens: 7 } },
        from: { '2050-01-01': { input_tokens: 9 } },
      },
    ]
    writeFileSync(file, JSON.stringify({ date: '2026-11-02', vendors: [{ vendor: 'v', provider: 'custom', prices }] }))
    return file
  }
  const stored = async (): Promise<any[]> => (await app.admin.get('/usage/prices?model=m-1&limit=100')).body.data

  it('has a source, a known provider, and only components that are metered for every price of the book', () => {
    const book = readPriceBook()
    assert.match(book.date, /^\d{4}-\d\d-\d\d$/)
    for (const { provider, prices } of book.vendors) {
      assert.ok((PROVIDER_TYPES as readonly string[]).includes(provider), provider)
      for (const { source, also = source, search_source = source, tier_source = source, as_of, models } of prices) {
        for (const page of [source, also, search_source, tier_source]) assert.match(page, /^https:\/\//)
        assert.ok(as_of === null || (/^\d{4}-\d\d-\d\d$/.test(as_of) && as_of <= book.date), String(as_of))
        assert.ok(models.length > 0)
      }
    }
    const prices = pricesOf(book, [])
    for (const { component, unit_price } of prices) {
      assert.ok(COMPONENTS.has(component), component)
      assert.ok(unit_price > 0 && unit_price < 1, `${component} ${unit_price}`)
    }
    const items = prices.map(({ unit_price: _, ...item }) => JSON.stringify(item))
    assert.equal(new Set(items).size, items.length)
  })

  it('has a price of web searches for every model of a vendor whose searches are metered', () => {
    const book = readPriceBook()
    for (const vendor of ['anthropic', 'openai', 'google', 'xai']) {
      const prices = pricesOf(book, [vendor])
      const searched = new Set(prices.filter(({ unit }) => unit === 'search').map(({ model }) => model))
      for (const { model } of prices) assert.ok(searched.has(model), model)
    }
  })

  it('rests on a page of the vendor for at least forty models', () => {
    const pages =
      /^https:\/\/(platform\.claude\.com|(developers\.)?openai\.com|ai\.google\.dev|docs\.x\.ai|console\.groq\.com|api-docs\.deepseek\.com)\//
    const entries = readPriceBook().vendors.flatMap(({ prices }) => prices)
    const models = entries.filter(({ source }) => pages.test(source)).flatMap(entry => entry.models)
    assert.ok(models.length >= 40, String(models.length))
  })

  it('shows what changes, and changes nothing without a confirmation', async () => {
    const book = bookFile('book.json', 2)
    const unnamed = await admin.run(['prices', 'import'])
    assert.equal(unnamed.code, 2)
    assert.match(unnamed.stderr, /--book/)
    const unconfirmed = await admin.run(['prices', 'import', '--book', book])
    assert.equal(unconfirmed.code, 2)
    assert.match(unconfirmed.stderr, /12 prices would be added.*--yes/s)
    const planned = await admin.run(['prices', 'import', '--book', book, '--plan', '--json'])
    assert.equal(planned.code, 0, planned.stderr)
    assert.equal(JSON.parse(planned.stdout).changes.length, 12)
    assert.deepEqual(await stored(), [])
  })

  it('adds exact prices by tier and size of prompts, and later only what differs', async () => {
    const added = await admin.run(['prices', 'import', '--book', bookFile('book.json', 2), '--yes'])
    assert.equal(added.code, 0, added.stderr)
    const first = await stored()
    assert.deepEqual(
      first
        .map(({ component, unit, unit_price, tier, above_tokens }) =>
          [component, unit, unit_price, tier, above_tokens].join(' '),
        )
        .sort(),
      [
        'input_tokens token 0.000002  ',
        'input_tokens token 0.000006  200000',
        'input_tokens token 0.000007 priority ',
        'input_tokens token 0.000009  ',
        'output_tokens token 3e-7  ',
        'web_searches search 0.01  ',
      ],
    )
    const again = await admin.run(['prices', 'import', '--book', bookFile('book.json', 2)])
    assert.equal(again.code, 0, again.stderr)
    const cheaper = await admin.run(['prices', 'import', '--book', bookFile('cheaper.json', 1), '--yes', '--json'])
    assert.equal(cheaper.code, 0, cheaper.stderr)
    const { changes } = JSON.parse(cheaper.stdout)
    assert.deepEqual(
      changes.map(({ model, component, replaces, unit_price }: any) => [model, component, replaces, unit_price]),
      ['m-1', 'm-1-2026'].map(model => [model, 'input_tokens', 2e-6, 1e-6]),
    )
    const successor = (await stored()).find(({ unit_price }) => unit_price === 1e-6)
    assert.ok(Date.parse(successor.effective_from) > Date.now())
  })

  it('adds the prices of a vendor to a project for who may write these only', async () => {
    const own = ['prices', 'import', '--book', '--vendor', 'groq', '--project', project.id, '--yes']
    const added = await user.run(own)
    assert.equal(added.code, 0, added.stderr)
    const { data } = (await project.key.get(`/projects/${project.id}/prices?limit=100`)).body
    assert.deepEqual([...new Set(data.map(({ provider }: any) => provider))], ['groq'])
    const refused = await user.run(['prices', 'import', '--book', '--vendor', 'groq', '--yes'])
    assert.notEqual(refused.code, 0)
    assert.equal((await app.admin.get('/usage/prices?provider=groq')).body.data.length, 0)
  })

  it('adds to a project what differs although the deployment has prices of the same models', async () => {
    const shared = ['prices', 'import', '--book', '--vendor', 'groq', '--yes']
    assert.equal((await admin.run(shared)).code, 0)
    const other = await app.projectWith(['projects:GetProjectPrices', 'projects:ManageProjectPrices'])
    const own = new User(app.url, other.key.token)
    const added = await own.run([...shared, '--project', other.id])
    own.close()
    assert.equal(added.code, 0, added.stderr)
    const { data } = (await other.key.get(`/projects/${other.id}/prices?limit=1`)).body
    assert.ok(Date.parse(data[0].effective_from) > Date.now())
  })

  it('adds the price of a day that has passed in place of the earlier one, and nothing the next time', async () => {
    const file = path.join(admin.directory, 'past.json')
    const source = { models: ['m-2'], source: 'https://vendor.example/prices', as_of: '2026-01-01' }
    const prices = [
      {
        ...source,
        prices: { input_tokens: 2 },
        from: { '2026-02-01': { input_tokens: 3 }, '2050-01-01': { input_tokens: 9 } },
      },
    ]
    writeFileSync(file, JSON.stringify({ date: '2026-01-02', vendors: [{ vendor: 'v', provider: 'custom', prices }] }))
    const importPast = ['prices', 'import', '--book', file, '--yes', '--json']
    const added = await admin.run(importPast)
    assert.equal(added.code, 0, added.stderr)
    const { data } = (await app.admin.get('/usage/prices?model=m-2')).body
    assert.deepEqual(data.map(({ unit_price }: any) => unit_price).sort(), [0.000003, 0.000009])
    assert.deepEqual(JSON.parse((await admin.run(importPast)).stdout).changes, [])
  })
})
