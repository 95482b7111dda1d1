import { z } from 'zod'
import { ndjsonStream } from '../../core/api/ndjson.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { decodeCursor, encodeCursor } from './cursor.ts'
import { Activity, type ActivityRow, activityEvents, activityKind } from './model.ts'
import { ActivityExportQuery, FeedQuery, StreamQuery, selectionOf } from './query.ts'
import { activityAfter, entriesBefore, feedTime } from './store.ts'
import { streamFeed } from './stream-feed.ts'

const tag = 'Activity'
const EXPORT_PAGE = 1000
/** An id before every other: a place before all entries of a millisecond. */
const FIRST_ID = `${activityKind.prefix}_${'0'.repeat(26)}`

const list = operation({
  id: 'listActivity',
  method: 'get',
  path: '/activity',
  summary: 'Read what agents and automation did, newest first',
  description:
    'Pages follow each other by `next_cursor`, which is null on the last one: entries that come meanwhile shift none. A cursor is a place in time and may be used with other filters.',
  tag,
  action: 'activity:ListActivity',
  lists: activityKind,
  paged: false,
  judges: ['cursor'],
  query: FeedQuery,
  answers: {
    200: z.object({
      data: z.array(Activity),
      next_cursor: z.string().nullable().describe('Where the next page begins; null on the last one'),
    }),
  },
  raises: ['ACTIVITY_INVALID_CURSOR'],
  async run(context) {
    const { cursor, limit } = context.query
    const selection = selectionOf(context)
    const before = cursor === undefined ? null : decodeCursor(cursor)
    const rows = await entriesBefore(context.db, selection, before, limit + 1)
    const data = rows.slice(0, limit)
    return {
      data: data.map(activityKind.present),
      next_cursor: rows.length > limit ? encodeCursor(data[limit - 1]) : null,
    }
  },
})

const exportFeed = operation({
  id: 'exportActivity',
  method: 'get',
  path: '/activity/export',
  summary: 'Stream the feed of a project, oldest first',
  description:
    'One JSON object a line. Entries written after the export began are not part of it. An answer that ends without a newline was broken off.',
  tag,
  action: 'activity:ExportActivity',
  lists: activityKind,
  paged: false,
  query: ActivityExportQuery,
  answers: { 200: Activity },
  produces: 'application/x-ndjson',
  internal: true,
  async run(context) {
    const { services, query } = context
    const started = await feedTime(services.pool)
    const to = query.to && query.to < new Date(started) ? query.to : new Date(started)
    const selection = selectionOf({ ...context, query: { ...query, to } })
    return ndjsonStream<ActivityRow>(
      context,
      {
        read: (after, limit) => activityAfter(services.pool, selection, after, limit),
        pageSize: EXPORT_PAGE,
        present: activityKind.present,
      },
      { 'Content-Disposition': `attachment; filename="activity-${selection.project}.ndjson"` },
    )
  },
})

const stream = operation({
  id: 'streamActivity',
  method: 'get',
  path: '/activity/stream',
  summary: 'Follow the feed of a project as it is written',
  description:
    'Server-sent events: `entry`, with the entry as data and its cursor as id, in the order of the feed. Begins with what comes next; `Last-Event-ID` goes on behind an entry, and any cursor of the feed will do. Ends with `error` when the caller loses its rights.',
  tag,
  action: 'activity:ListActivity',
  about: activityKind,
  query: StreamQuery,
  answers: { 200: null },
  stream: activityEvents,
  raises: ['ACTIVITY_INVALID_CURSOR'],
  internal: true,
  async run(context) {
    const selection = selectionOf(context)
    const resumed = context.request.headers['last-event-id']
    const after =
      typeof resumed === 'string'
        ? decodeCursor(resumed)
        : { created_at: await feedTime(context.services.pool), id: FIRST_ID }
    return streamFeed(context, selection, after)
  },
})

export const activityOperations: Operation[] = [list, exportFeed, stream]
