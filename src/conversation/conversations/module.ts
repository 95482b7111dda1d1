import { endUserContent, turnContent } from '../../control/retention/content.ts'
import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { waitingRows } from '../../core/jobs/waiting-rows.ts'
import { mailboxes } from '../../execution/generations/abort.ts'
import { continueInMailbox, retryInMailbox } from '../turns/generate.ts'
import { turnHandlers, turnSchedules } from '../turns/handler.ts'
import { endInMailbox, resumeInMailbox } from '../turns/mailbox.ts'
import { oldestQueuedTurn } from '../turns/store.ts'
import { pruneDeleted } from './deleted.ts'
import { historyContent, messageContent } from './erase.ts'
import { EXPIRE_CONVERSATIONS, expiryHandler, expirySchedule } from './expire.ts'
import { conversationKind, messageEvents } from './model.ts'
import { conversationOperations } from './operations.ts'

export default module('conversations', {
  tags: { Conversations: 'Ordered messages of several actors, and turns in them.' },
  kinds: [conversationKind],
  resourceTypes: [resourceType(conversationKind)],
  eventSources: [messageEvents],
  operations: conversationOperations,
  handlers: [...turnHandlers, expiryHandler],
  schedules: [...turnSchedules, expirySchedule],
  policyActions: [
    {
      action: EXPIRE_CONVERSATIONS,
      description: 'Written to the audit log when conversations past the retention of the project are deleted',
      resource_type: 'project',
    },
  ],
  sweeps: [{ name: 'deleted messages', when: '57 3 * * *', run: pruneDeleted }],
  extensions: [
    turnContent.with(historyContent),
    endUserContent.with(messageContent),
    waitingRows.with({ concern: 'generation', since: oldestQueuedTurn }),
    mailboxes.with({
      end: endInMailbox,
      retry: retryInMailbox,
      resume: resumeInMailbox,
      continue: continueInMailbox,
    }),
  ],
})
