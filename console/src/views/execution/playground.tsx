import { Button, Card, Group, Select, SimpleGrid, Stack, Text, Textarea, VisuallyHidden } from '@mantine/core'
import type { Agent } from '@muster/client'
import { createAgent, listAgents } from '@muster/client/operations'
import { IconPlayerStop, IconRobot, IconSend } from '@tabler/icons-react'
import { Link, useLocation, useNavigate } from '@tanstack/react-router'
import { useEffect, useRef } from 'react'
import { useAgents } from '#choices.ts'
import { useDraft } from '#components/draft.tsx'
import { useFilters } from '#components/filters.ts'
import { Page } from '#components/page.tsx'
import { sendOnEnter } from '#components/send-key.ts'
import { Loaded, Notice, Refused } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { useExchange } from '#playground/exchange.ts'
import { TurnCard } from '#playground/turn-card.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.playground

const nameOf = ({ name, version }: Agent): string =>
  `${visible(name ?? strings.agents.unnamed)} · ${strings.version.toLowerCase()} ${version}`

/** Streams turns of an agent with each of their steps; of two agents side by side. */
export function Playground() {
  const projectId = useProjectId()
  const { filters, setFilters } = useFilters()
  const isAllowed = usePermissions(projectId)
  const { query: agents } = useAgents(projectId)
  if (isAllowed(listAgents) === false)
    return (
      <Page title={strings.nav.playground} intro={texts.intro}>
        <Refused operation={listAgents} />
      </Page>
    )
  return (
    <Page title={strings.nav.playground} intro={texts.intro}>
      <Loaded query={agents} operation={listAgents}>
        {rows => {
          if (rows.length === 0)
            return (
              <Notice
                icon={<IconRobot />}
                title={strings.agents.empty}
                color="indigo"
                action={
                  isAllowed(createAgent) && (
                    <Button component={Link} to={`/p/${projectId}/agents/new`}>
                      {strings.agents.create}
                    </Button>
                  )
                }
              >
                {texts.noAgents}
              </Notice>
            )
          const first = filters.q ?? rows[0].id
          const choices = rows.map(agent => ({ value: agent.id, label: nameOf(agent) }))
          const labelOf = (id: string) => choices.find(({ value }) => value === id)?.label ?? id
          return (
            <>
              <Group gap="sm">
                <Select
                  label={texts.agent}
                  placeholder={texts.chooseAgent}
                  searchable
                  allowDeselect={false}
                  data={choices}
                  value={first}
                  onChange={next => setFilters({ q: next ?? undefined })}
                  w={{ base: '100%', xs: 320 }}
                />
                {rows.length > 1 && (
                  <Select
                    label={texts.beside}
                    placeholder={texts.nothingBeside}
                    searchable
                    clearable
                    clearButtonProps={{ 'aria-label': strings.form.clear(texts.beside) }}
                    data={choices.filter(({ value }) => value !== first)}
                    value={filters.beside ?? null}
                    onChange={next => setFilters({ beside: next ?? undefined })}
                    w={{ base: '100%', xs: 320 }}
                  />
                )}
              </Group>
              <Exchange
                key={`${first} ${filters.beside}`}
                agentIds={[first, ...(filters.beside && filters.beside !== first ? [filters.beside] : [])]}
                labelOf={labelOf}
              />
            </>
          )
        }}
      </Loaded>
    </Page>
  )
}

/** The turns with one agent, or with two that get the same messages. */
function Exchange({ agentIds, labelOf }: { agentIds: string[]; labelOf: (id: string) => string }) {
  const first = useExchange(agentIds[0])
  const second = useExchange(agentIds[1])
  const exchanges = [first, second].slice(0, agentIds.length)
  const given = useLocation({ select: ({ state }) => state.prompt })
  const { value: message, setValue: setMessage } = useDraft('message', '')
  const navigate = useNavigate()
  useEffect(() => {
    if (!given) return
    setMessage(given)
    // A reload restores the message instead, which may be edited or sent by then.
    void navigate({ to: '.', search: true, replace: true, state: ({ prompt, ...others }) => others })
  }, [given])
  const end = useRef<HTMLDivElement>(null)
  const input = useRef<HTMLTextAreaElement>(null)
  const isRunning = exchanges.some(each => each.isRunning)
  const isEmpty = exchanges.every(({ turns }) => turns.length === 0)
  const steps = exchanges.reduce(
    (sum, { turns }) => sum + turns.reduce((all, turn) => all + turn.steps.length + 1, 0),
    0,
  )
  useEffect(() => {
    end.current?.scrollIntoView({ block: 'nearest' })
  }, [steps, isRunning])
  const send = async () => {
    const prompt = message.trim()
    if (!prompt || isRunning) return
    setMessage('')
    await Promise.all(exchanges.map(each => each.send(prompt)))
    input.current?.focus()
  }
  /** Takes a prompt back into the field, and drops its result. */
  const fork = (prompt: string, index: number) => {
    for (const each of exchanges) each.returnTo(index)
    setMessage(prompt)
    input.current?.focus()
  }
  return (
    <Stack gap="md">
      {isEmpty && (
        <Notice icon={<IconRobot />} title={texts.empty} color="indigo">
          {texts.emptyText}
        </Notice>
      )}
      <SimpleGrid cols={{ base: 1, md: exchanges.length }}>
        {exchanges.map((exchange, column) => (
          <Stack gap="md" key={agentIds[column]} miw={0}>
            {exchanges.length > 1 && (
              <Text fw={600} component="h2" size="md">
                {labelOf(agentIds[column])}
              </Text>
            )}
            {exchange.turns.map((turn, index) => (
              <TurnCard
                key={turn.startedAt}
                turn={turn}
                agentId={agentIds[column]}
                onAnswer={outputs => void exchange.answer(outputs)}
                onFork={() => fork(turn.prompt, index)}
              />
            ))}
          </Stack>
        ))}
      </SimpleGrid>
      {/* The composer covers the end of the page. */}
      <div ref={end} style={{ scrollMarginBottom: 170 }} />
      <VisuallyHidden role="status" aria-live="polite">
        {!isEmpty && !isRunning && texts.done}
      </VisuallyHidden>
      <Card withBorder padding="md" radius="lg" style={{ position: 'sticky', bottom: 12 }} shadow="sm">
        <Stack gap="sm">
          <Textarea
            ref={input}
            aria-label={texts.message}
            placeholder={texts.placeholder}
            autosize
            minRows={2}
            maxRows={8}
            value={message}
            onChange={event => setMessage(event.currentTarget.value)}
            onKeyDown={sendOnEnter(send)}
            data-autofocus
          />
          <Group justify="flex-end" gap="sm">
            {!isEmpty && !isRunning && (
              <Button variant="default" onClick={() => fork('', 0)}>
                {texts.clear}
              </Button>
            )}
            {isRunning ? (
              <Button
                variant="default"
                leftSection={<IconPlayerStop size={16} />}
                onClick={() => {
                  for (const each of exchanges) if (each.isRunning) each.stop()
                }}
              >
                {texts.stop}
              </Button>
            ) : (
              <Button leftSection={<IconSend size={16} />} onClick={() => void send()} disabled={!message.trim()}>
                {texts.send}
              </Button>
            )}
          </Group>
        </Stack>
      </Card>
    </Stack>
  )
}
