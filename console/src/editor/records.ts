import type { MemoryStore, Trigger } from '@muster/client'
import { listMemoryStores, listTriggers } from '@muster/client/operations'
import { choicesOf, useAgents, useOrchestrations, useTools } from '#choices.ts'
import type { Records } from './kind.ts'

const useMemoryStores = choicesOf<MemoryStore>('memory-stores', listMemoryStores)
const useTriggers = choicesOf<Trigger>('triggers', listTriggers)

/** Reads the names of the records that nodes and states refer to, by the field. */
export function useRecords(projectId: string): Records {
  const stores = useMemoryStores(projectId).choices
  return {
    agent_id: useAgents(projectId).choices,
    tool_id: useTools(projectId).choices,
    orchestration_id: useOrchestrations(projectId).choices,
    trigger_id: useTriggers(projectId).choices,
    memory_store_id: stores,
    memory_store_ids: stores,
  }
}
