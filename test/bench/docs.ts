import { gzipSync } from 'node:zlib'
import MiniSearch from 'minisearch'
import { startApp } from '../support/app.ts'
import { median, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Pages of the documentation, rendered and cached, and their search; a cached page against the liveness probe of the
 * same process. Usage: node test/bench/run.ts docs
 */
const REQUESTS = 200

/** Milliseconds of a call. */
async function timeOf(call: () => unknown): Promise<number> {
  const start = performance.now()
  await call()
  return performance.now() - start
}

export async function run(): Promise<Row[]> {
  const app = await startApp()
  const text = async (path: string): Promise<string> => (await fetch(app.url + path)).text()
  /** Median of some requests for one path. */
  const timeOfPage = async (path: string): Promise<number> => {
    const times: number[] = []
    for (let count = 0; count < REQUESTS; count++) times.push(await timeOf(() => text(path)))
    return median(times)
  }
  try {
    const start = await text('/docs')
    const pages = [...new Set([...start.matchAll(/<a [^>]*?href="(\/docs\/[^"#]*)"/g)].map(([, path]) => path))]
    const rendering = await timeOf(async () => {
      for (const path of pages) await text(path)
    })
    const [page, floor] = [await timeOfPage('/docs/guides/operations'), await timeOfPage('/healthz')]
    let index = ''
    const indexing = await timeOf(async () => {
      index = await text('/docs/search.json')
    })
    const { options, index: entries } = JSON.parse(index)
    const search = MiniSearch.loadJS<{ id: number }>(entries, options)
    const searching = await timeOf(() => search.search('how are passwords stored'))
    return [
      { what: `${pages.length} pages, first request of each`, value: rounded(rendering), unit: 'ms', target: '< 3000' },
      { what: 'a cached page', value: rounded(page, 2), unit: 'ms', target: '< 50' },
      { what: 'a cached page / liveness probe', value: rounded(page / floor, 2), unit: 'x' },
      { what: 'search index, first request', value: rounded(indexing), unit: 'ms' },
      { what: 'search index, gzip', value: rounded(gzipSync(index).length / 1024), unit: 'KB', target: '< 300' },
      { what: 'a search', value: rounded(searching), unit: 'ms' },
    ]
  } finally {
    await app.close()
  }
}
