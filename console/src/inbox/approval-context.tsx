import { Stack, Text } from '@mantine/core'
import type { Approval, ApprovalContext } from '@muster/client'
import { getApprovalContext } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from '#api.ts'
import { AgentLink, EndUserLink } from '#components/end-user-link.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { authorOf, MessageHead } from '#components/message.tsx'
import { Facts } from '#components/record.tsx'
import { Loaded } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import * as strings from '#strings.ts'

const texts = strings.inbox

/** Reads what a person needs for a decision. */
export const useApprovalContext = ({ id }: Approval, isEnabled: boolean) =>
  useQuery<ApprovalContext>({
    queryKey: ['approval-context', id],
    queryFn: async ({ signal }) => getApprovalContext(api, { approval_id: id }, { signal }),
    staleTime: 30_000,
    enabled: isEnabled,
  })

/** Who the decision is about, the rule that required it, and the messages before it. */
export function DecisionContext({ row, query }: { row: Approval; query: ReturnType<typeof useApprovalContext> }) {
  return (
    <Loaded query={query} operation={getApprovalContext} rows={2}>
      {({ actor, agent, guardrail, messages }) => (
        <Stack gap="sm">
          <Facts
            facts={[
              [
                texts.endUser,
                actor && (
                  <EndUserLink
                    key="actor"
                    entry={{ actor_id: actor.id, actor_name: actor.name, actor_external_id: actor.external_id }}
                  />
                ),
              ],
              [texts.agent, agent && <AgentLink key="agent" entry={{ agent_id: agent.id, agent_name: agent.name }} />],
              [
                texts.guardrail,
                guardrail && (
                  <EntityLink
                    key="guardrail"
                    kind="guardrail"
                    id={guardrail.id}
                    projectId={row.project_id}
                    name={strings.guardrails.version(guardrail.name, guardrail.version)}
                  />
                ),
              ],
              [
                texts.turn,
                row.generation_id && (
                  <EntityLink key="turn" kind="generation" id={row.generation_id} projectId={row.project_id} />
                ),
              ],
            ]}
          />
          {guardrail?.document && (
            <Stack gap={4}>
              <Text size="sm" c="dimmed">
                {texts.rule}
              </Text>
              <Value value={guardrail.document} label={texts.rule} />
            </Stack>
          )}
          {messages && messages.length > 0 && <LastMessages messages={messages} />}
        </Stack>
      )}
    </Loaded>
  )
}

function LastMessages({ messages }: { messages: NonNullable<ApprovalContext['messages']> }) {
  return (
    <Stack gap="xs" component="section" aria-label={texts.lastMessages}>
      <Text size="sm" c="dimmed">
        {texts.lastMessages}
      </Text>
      {messages.map(message => (
        <Stack gap={0} key={message.created_at + message.origin}>
          <MessageHead name={authorOf(message)} at={message.created_at} />
          <Text size="sm" className="wrap" lineClamp={6}>
            {visible(message.content ?? strings.none)}
          </Text>
        </Stack>
      ))}
    </Stack>
  )
}
