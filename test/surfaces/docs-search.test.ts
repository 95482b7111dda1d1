import assert from 'node:assert/strict'
import { gzipSync } from 'node:zlib'
import MiniSearch from 'minisearch'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

type Entry = { id: number; title: string; context: string; terms?: Set<string> }
type Find = (search: MiniSearch, synonyms: Record<string, string[]>, query: string) => Entry[]

const MOST_BYTES_OF_INDEX_GZIP = 300 * 1024
const SHOWN_FIRST = 5

/** Queries of newcomers, with the addresses below /docs that answer them; an address without an anchor is the whole page. */
const NEWCOMERS: Record<string, string[]> = {
  'openai api key': [
    'guides/conversations#before-the-first-call',
    'guides/conversations#a-provider-and-an-agent',
    'guides/model-vendors#the-api-key-of-openai-anthropic-or-google',
  ],
  'use the client in my app': ['guides/client', 'guides/client#install', 'guides/client#start', 'guides/install'],
  'install client npm': ['guides/client#install', 'guides/install', 'guides/install#typescript-and-javascript'],
  'limit spend per customer': ['guides/quotas#limit-the-spend-of-each-customer'],
  'erase end user': ['guides/retention#erase-an-end-user'],
  'slack notification': ['guides/quick-start-slack'],
  python: ['guides/quick-start-python', 'guides/install', 'guides/install#python'],
  'json output schema': ['guides/agents#json-instead-of-text'],
  'why did my turn fail': ['guides/concepts-conversations#why-did-my-turn-fail'],
  CORS: ['guides/operations#cors-pages-of-other-origins'],
  'upgrade version': ['guides/operations#upgrades'],
  'change the system prompt': ['guides/agents#change-the-system-prompt'],
  'rate limit': ['guides/quotas#rate-limits'],
  'nginx reverse proxy': ['guides/operations#a-reverse-proxy-nginx-caddy-and-others'],
  'streaming react': ['guides/ai-sdk#streaming-in-react-connect-a-page'],
  'localhost tool blocked': ['guides/tools#an-address-on-localhost-or-in-a-private-network-is-blocked'],
  docker: ['guides/operations#docker-and-other-containers'],
}

/** Further queries of the same kind. */
const NEWCOMERS_TOO: Record<string, string[]> = {
  'reset admin password': ['guides/operations#the-first-admin-colleagues-and-a-lost-password'],
  'invite a team member': ['guides/operations#the-first-admin-colleagues-and-a-lost-password'],
  'delete old conversations': ['guides/retention#delete-old-conversations'],
  'chat widget on my website': [
    'guides/guide',
    'guides/guide#the-page',
    'guides/ai-sdk#streaming-in-react-connect-a-page',
  ],
  'azure openai': [
    'guides/conversations#a-provider-and-an-agent',
    'guides/model-vendors#openai-and-azure-with-configapi-responses',
  ],
  'run my agent every night': ['guides/triggers#schedule-triggers', 'guides/quick-start-workflow'],
  'test prompt changes': ['guides/evaluations', 'guides/agents#change-the-system-prompt'],
  "keep customers' data separate": ['guides/security#reaching-other-tenants'],
  'restore a backup': ['guides/operations#backups'],
  'hand over to a human': ['guides/conversations#people-take-over', 'guides/guide#a-person-takes-over'],
}
const FEWEST_FOUND = 25

describe('the search of the documentation', function () {
  this.timeout(120_000)
  const app = forSuite(() => startApp())
  let found: (query: string) => string[]

  before(async () => {
    const get = async (path: string) => (await fetch(app.url + path)).text()
    const text = await get('/docs/search.json')
    const { options, index, synonyms, targets } = JSON.parse(text)
    assert.ok(gzipSync(text).length < MOST_BYTES_OF_INDEX_GZIP)
    const source = `data:text/javascript,${encodeURIComponent(await get('/docs/assets/query.js'))}`
    const { find } = (await import(source)) as { find: Find }
    const search = MiniSearch.loadJS(index, options)
    found = query => find(search, synonyms, query).map(({ id }) => targets[id].slice('/docs/'.length))
  })

  it('finds pages and sections by words of newcomers', () => {
    const missed = Object.entries({ ...NEWCOMERS, ...NEWCOMERS_TOO }).flatMap(([query, answers]) => {
      const first = found(query).slice(0, SHOWN_FIRST)
      return first.some(each => answers.includes(each)) ? [] : `${query}: ${first.join(', ')}`
    })
    const queries = Object.keys(NEWCOMERS).length + Object.keys(NEWCOMERS_TOO).length
    assert.ok(queries - missed.length >= FEWEST_FOUND, missed.join('\n'))
  })

  it('finds text at the end of a long section', () => {
    assert.ok(
      found('host.docker.internal')
        .slice(0, SHOWN_FIRST)
        .some(each => each.startsWith('guides/tools#')),
    )
  })

  it('shows at most two sections of a page before the other pages', () => {
    const first = found('end user token').slice(0, SHOWN_FIRST)
    const pages = first.map(each => each.split('#')[0])
    for (const page of pages) assert.ok(pages.filter(each => each === page).length <= 2, first.join(', '))
  })
})
