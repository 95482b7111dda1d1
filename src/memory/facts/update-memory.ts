import type { z } from 'zod'
import type { Context } from '#core/api/operation.ts'
import { replacedTags } from '#core/api/tags.ts'
import { newId } from '#core/base/ids.ts'
import { memoryEntryKind } from '../entries/model.ts'
import { insertEntry } from '../entries/store.ts'
import { embedContent } from './embed.ts'
import { contentHash } from './hash.ts'
import { type MemoryPatch, type MemoryRow, memoryKind, requireCurrent, requireFuture } from './model.ts'
import { type EmbeddedMemory, replaceMemoryContent } from './store.ts'

type UpdateContext<P> = Context<Record<string, never>, z.output<typeof MemoryPatch>, MemoryRow, P>

/** Embeds a changed text before the memory is locked. */
export const embedNewText = async ({
  body,
  resource,
  services,
}: UpdateContext<undefined>): Promise<EmbeddedMemory | null> =>
  body.content === undefined || body.content === resource.content
    ? null
    : embedContent(services, { project_id: resource.project_id, ref: resource.id, content: body.content })

/**
 * Updates a memory in place. A new text is recorded as a separate entry, but not compared with other memories.
 * @throws VALIDATION_FAILED for an invalidated memory
 */
export async function updateMemory(context: UpdateContext<EmbeddedMemory | null>): Promise<MemoryRow> {
  const { body, caller, prepared, resource, services, tx } = context
  const stored = await memoryKind.lock(tx, resource.id)
  requireCurrent(stored)
  requireFuture(body.expires_at, services.clock.now())
  const { content = stored.content, ...others } = Object.fromEntries(
    Object.entries(body).filter(([, value]) => value !== undefined),
  ) as typeof body
  if (others.tags) {
    others.tags = replacedTags(stored.tags, others.tags)
    context.allowTags(others.tags)
  }
  const changes = memoryKind.changes(stored, { ...stored, ...others } as MemoryRow)
  let row = stored
  if (content !== stored.content)
    row = await replaceMemoryContent(
      tx,
      stored,
      { content, hash: contentHash(content) },
      // If the text changed concurrently, it is embedded later.
      prepared ?? { vectors: [], failed: true, space: null },
      services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG,
    )
  if (Object.keys(changes).length > 0) row = await memoryKind.update(tx, stored.id, changes)
  if (row === stored) return stored
  tx.emit(memoryKind, 'updated', row)
  if (content !== stored.content)
    await insertEntry(tx, {
      id: newId(memoryEntryKind.prefix),
      project_id: row.project_id,
      memory_store_id: row.memory_store_id,
      content,
      action: 'updated',
      memory_id: row.id,
      superseded_memory_id: null,
      similarity: null,
      declared: false,
      mechanism: 'api',
      memory_rule_id: null,
      generation_id: null,
      conversation_id: null,
      source_id: row.source_id,
      actor_id: row.actor_id,
      principal_type: caller.principal.type,
      principal_id: caller.principal.id,
      tags: body.tags ?? {},
      metadata: body.metadata ?? null,
    })
  return row
}
