import { z } from 'zod'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { documentKind } from './model.ts'

const named = sql.type(documentKind.row.extend({ bytes: z.int().nullable(), content: z.string().nullable() }))

/**
 * Documents of a project by their ids, in any order, with the text of those that are ready and its length in UTF-8. Of
 * more than `maxBytes` of text in all, none is read. By the primary keys of both tables.
 */
export const findTexts = (db: Queryable, projectId: string, ids: readonly string[], maxBytes: number) =>
  db.any(named`
    select ${documentKind.columns}, octet_length(x.content) as bytes,
      case when sum(octet_length(x.content)) over () <= ${maxBytes} then x.content end as content
    from documents t left join document_texts x on x.document_id = t.id and t.status = 'ready'
    where t.id = any(${sql.array([...ids], 'text')}) and t.project_id = ${projectId}`)
