import { sessionActors } from '../src/conversation/sessions/expire.ts'
import { conversationActors } from '../src/conversation/turns/handler.ts'
import type { Services } from '../src/core/process/services.ts'
import { generationActors as turnActors } from '../src/execution/generations/handler.ts'
import type { Concern } from './concern.ts'

/** Turns of agents, on their own and in conversations. */
export function generationActors(services: Services): Concern {
  const parts = [turnActors(services), conversationActors(services), sessionActors(services)]
  return { actors: parts.flatMap(part => part.actors), ticks: parts.flatMap(part => part.ticks) }
}
