import { module } from '../../core/api/module.ts'
import { turnHandlers, turnSchedules } from '../turns/handler.ts'
import { conversationKind, messageEvents } from './model.ts'
import { conversationOperations } from './operations.ts'

export default module('conversations', {
  kinds: [conversationKind],
  eventSources: [messageEvents],
  operations: conversationOperations,
  handlers: turnHandlers,
  schedules: turnSchedules,
})
