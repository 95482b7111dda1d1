import { client } from './app.ts'

/** What a process shows at /metrics: reads one number by the name of its metric and its labels; undefined where it is not shown. */
export type Scrape = {
  text: string
  value(name: string, labels?: Record<string, string>): number | undefined
}

/** Reads the metrics of a process. */
export async function scrape(url: string): Promise<Scrape> {
  const { body } = await client(url, null).get('//metrics')
  const text = body as string
  const lines = text.split('\n')
  return {
    text,
    value(name, labels = {}) {
      const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`)
      const found = lines.filter(
        each => /^\w+/.exec(each)?.[0] === name && wanted.every(label => each.includes(label)) && !each.startsWith('#'),
      )
      // Other tests of the process leave series with other labels.
      return found.length === 0
        ? undefined
        : found.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0)
    },
  }
}
