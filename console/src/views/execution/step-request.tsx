import { Anchor, Button, List, Stack, Text } from '@mantine/core'
import type { Transcript } from '@muster/client'
import { createAgentGeneration, getDocument, getGenerationStepRequest } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { Part, Section } from '#components/record.tsx'
import { Loaded } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

declare module '@tanstack/react-router' {
  interface HistoryState {
    /** Text with which the playground opens. */
    prompt?: string
  }
}

const texts = strings.traces

type Message = { role?: unknown; content?: unknown }

const textOf = ({ content }: Message): string =>
  typeof content === 'string'
    ? content
    : (content as { type: string; text?: string }[]).flatMap(({ text }) => text ?? []).join('\n\n')

/** Returns the text of the last message of the user in a turn; null without one. */
export function lastPrompt(transcript: Transcript | undefined): string | null {
  const last = (transcript?.input as Message[] | null | undefined)?.findLast(({ role }) => role === 'user')
  return (last && textOf(last)) || null
}

/** Opens the playground with the agent and the prompt of a turn. */
export function PlaygroundLink({ agentId, prompt }: { agentId: string; prompt: string }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  if (!isAllowed(createAgentGeneration)) return null
  return (
    <Button
      component={Link}
      to={`/p/${projectId}/playground?q=${agentId}`}
      state={{ prompt }}
      variant="default"
      size="xs"
    >
      {texts.openPlayground}
    </Button>
  )
}

const isEmpty = (value: object | null): boolean => value === null || Object.keys(value).length === 0

/** What a step sent to its model, read when it is opened. */
export function StepRequest({ turnId, step }: { turnId: string; step: number }) {
  const [isOpen, setIsOpen] = useState(false)
  const request = useQuery({
    queryKey: ['generation', turnId, 'request', step],
    queryFn: async ({ signal }) =>
      getGenerationStepRequest(api, { generation_id: turnId, step: String(step) }, { signal }),
    enabled: isOpen,
    staleTime: Number.POSITIVE_INFINITY,
  })
  if (!isOpen)
    return (
      <Button variant="default" onClick={() => setIsOpen(true)} style={{ alignSelf: 'start' }}>
        {texts.showRequest}
      </Button>
    )
  return (
    <Section title={texts.request}>
      <Loaded query={request} operation={getGenerationStepRequest} rows={4}>
        {sent => (
          <Stack gap="md">
            {sent.omitted_messages > 0 && <Text size="sm">{texts.requestOmitted(sent.omitted_messages)}</Text>}
            {sent.is_shortened && <Text size="sm">{texts.requestShortened}</Text>}
            <Part title={texts.system} value={sent.system} />
            <Part title={texts.messages} value={sent.messages} />
            {!isEmpty(sent.tools) && <Part title={strings.agents.tools} value={sent.tools} />}
            {!isEmpty(sent.settings) && <Part title={texts.settings} value={sent.settings} />}
            <Part title={texts.outputSchema} value={sent.output_schema} />
            <Part title={texts.vendorTools} value={sent.vendor_tools} />
            <Part title={texts.vendorOptions} value={sent.provider_options} />
          </Stack>
        )}
      </Loaded>
    </Section>
  )
}

/** The results of a search, whose texts the model got. */
export function Retrieval({ transcript: { knowledge } }: { transcript: Transcript }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  return (
    <>
      <Part title={strings.runs.error} value={knowledge?.error} />
      <Section title={texts.knowledge}>
        <List spacing="xs" listStyleType="none" withPadding={false}>
          {(knowledge?.results ?? []).map(({ type, id, document_id, score }) => (
            <List.Item key={id}>
              {document_id && isAllowed(getDocument) ? (
                <Anchor component={Link} to={`/p/${projectId}/documents/${document_id}`}>
                  {texts.openDocument}
                </Anchor>
              ) : type === 'memory' ? (
                texts.memoryFact
              ) : (
                texts.passage
              )}{' '}
              <span className="mono">{visible(id)}</span>
              {score !== null && ` · ${texts.knowledgeScore(score.toFixed(3))}`}
            </List.Item>
          ))}
        </List>
      </Section>
    </>
  )
}
