import assert from 'node:assert/strict'
import type { ListOrder } from '#core/api/across.ts'
import type { Queryable } from '#core/db/sql.ts'
import { MergeOrder, mergedPage, type ReadList } from '#core/invoke/merged-lists.ts'
import { random } from '../support/random.ts'

type Row = { at: number | null; id: string }

const ORDER: ListOrder = [
  ['at', 'desc'],
  ['id', 'asc'],
]
const SLACK = 10

const inOrder = (a: Row, b: Row): number => {
  if (a.at === b.at) return a.id < b.id ? -1 : 1
  if (a.at === null || b.at === null) return a.at === null ? -1 : 1
  return b.at - a.at
}

/** A list in memory, with the sizes of the pages that are read of it. */
function listOf(rows: readonly Row[]): { read: ReadList; sizes: number[] } {
  const sizes: number[] = []
  const read: ReadList = async ({ limit, offset }) => {
    const data = rows.slice(offset, offset + limit)
    sizes.push(data.length)
    return { data, total: rows.length, limit, offset }
  }
  return { read, sizes }
}

describe('merged lists', () => {
  const order = new MergeOrder(ORDER, null as unknown as Queryable)

  it('have every page of the sorted rows, of which each list is read little', async () => {
    const below = random(45)
    for (let round = 0; round < 300; round++) {
      const lists = Array.from({ length: 1 + below(4) }, (_, list) => {
        const most = below(3) === 0 ? 5 : 1000
        return Array.from({ length: below(most) }, (_, row): Row => {
          const at = below(20) === 0 ? null : below(200)
          return { at, id: `${String(row).padStart(4, '0')}-${list}` }
        }).sort(inOrder)
      })
      const sorted = lists.flat().sort(inOrder)
      const offset = below(sorted.length + 20)
      const limit = 1 + below(20)
      const read = lists.map(listOf)
      assert.deepEqual(
        await mergedPage(
          read.map(each => each.read),
          order,
          { limit, offset },
          SLACK,
        ),
        { data: sorted.slice(offset, offset + limit), total: sorted.length, limit, offset },
        `round ${round}`,
      )
      for (const { sizes } of read) {
        const [last, ...rows] = sizes.reverse()
        assert.ok(last <= limit + SLACK, `round ${round}: ${last} rows for a page of ${limit}`)
        assert.ok(rows.every(count => count <= 1))
        assert.ok(rows.length < 40, `round ${round}: ${rows.length} rows before it`)
      }
    }
  })
})
