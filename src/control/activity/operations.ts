import { z } from 'zod'
import { ndjsonStream } from '#core/api/ndjson.ts'
import { type Operation, operation } from '#core/api/operation.ts'
import { decodeCursor, encodeCursor } from './cursor.ts'
import { Activity, type ActivityRow, activityEvents, activityKind } from './model.ts'
import { ActivityExportQuery, FeedQuery, StreamQuery, selectionOf } from './query.ts'
import { listActivityAfter, listActivityBefore, readFeedTime } from './store.ts'
import { streamFeed } from './stream-feed.ts'

const tag = 'Activity'
const EXPORT_PAGE = 1000
/** Sorts before every other id, so it precedes all entries of a millisecond. */
const FIRST_ID = `${activityKind.prefix}_${'0'.repeat(26)}`

const list = operation({
  id: 'listActivity',
  method: 'get',
  path: '/activity',
  summary: 'List activity entries',
  description:
    'Newest first. Pass `next_cursor` as `cursor` to get the next page; it is null on the last page. Entries written while paging do not shift pages. A cursor may be combined with other filters.',
  tag,
  action: 'activity:ListActivity',
  lists: activityKind,
  paged: false,
  unvalidatedQuery: ['cursor'],
  query: FeedQuery,
  answers: {
    200: z.object({
      data: z.array(Activity),
      next_cursor: z.string().nullable().describe('Cursor of the next page; null on the last page'),
    }),
  },
  raises: ['ACTIVITY_INVALID_CURSOR'],
  async run(context) {
    const { cursor, limit } = context.query
    const selection = selectionOf(context)
    const before = cursor === undefined ? null : decodeCursor(cursor)
    const rows = await listActivityBefore(context.db, selection, before, limit + 1)
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
  summary: 'Export activity entries',
  description:
    'Oldest first, one JSON object per line. Entries written after the export began are excluded. A response that does not end with a newline is incomplete.',
  tag,
  action: 'activity:ExportActivity',
  lists: activityKind,
  paged: false,
  replica: true,
  query: ActivityExportQuery,
  answers: { 200: Activity },
  produces: 'application/x-ndjson',
  internal: true,
  async run(context) {
    const { db, services, query } = context
    // Before the first page, whose statement then sees every earlier entry on a replica too.
    const started = await readFeedTime(services.pool)
    const to = query.to && query.to < new Date(started) ? query.to : new Date(started)
    const selection = selectionOf({ ...context, query: { ...query, to } })
    return ndjsonStream<ActivityRow>(
      context,
      {
        read: (after, limit) => listActivityAfter(db, selection, after, limit),
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
  summary: 'Stream activity entries',
  description:
    'Server-sent events named `entry`, with the entry as data and its cursor as event ID, oldest first. Starts with the next new entry, or after the entry of `Last-Event-ID`, which accepts any cursor of the feed. Ends with `error` when the caller loses its permissions.',
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
        : { created_at: await readFeedTime(context.services.pool), id: FIRST_ID }
    return streamFeed(context, selection, after)
  },
})

export const activityOperations: Operation[] = [list, exportFeed, stream]
