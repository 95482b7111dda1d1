import releaseFields from 'fields:setAgentRelease'
import { Group, Progress, Stack, Text } from '@mantine/core'
import type { Agent, AgentVersion, Eval } from '@muster/client'
import { abortAgentRelease, listEvals, promoteAgentRelease, setAgentRelease } from '@muster/client/operations'
import { IconGitBranch } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { api } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { Facts, Section } from '#components/record.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.release

const EVALS = 100

/** The staged release of an agent: two versions that share its callers until one is promoted. */
export function Release({ agent, versions }: { agent: Agent; versions: AgentVersion[] }) {
  const isAllowed = usePermissions(agent.project_id)
  const mayRelease = isAllowed(setAgentRelease) === true
  const evals = useQuery<Eval[]>({
    queryKey: ['evals', agent.project_id, 'all'],
    queryFn: async ({ signal }) =>
      (await listEvals(api, { project_id: agent.project_id, limit: EVALS }, { signal }).page()).data,
    enabled: mayRelease && isAllowed(listEvals) === true,
  })
  const gates = (evals.data ?? []).filter(({ agent_id }) => agent_id === agent.id)
  const form = (close: () => void) => <ReleaseForm agent={agent} versions={versions} gates={gates} onDone={close} />
  const { active_release: release } = agent
  const stale = [['agent', agent.id], ['agents']]
  if (!release)
    return mayRelease && versions.length > 1 ? (
      <Group justify="space-between" gap="sm">
        <Text size="sm" c="dimmed" flex="1 1 260px">
          {texts.none}
        </Text>
        <FormButton label={texts.start} variant="default" leftSection={<IconGitBranch size={16} />} form={form} />
      </Group>
    ) : null
  const { stable_version, canary_version, canary_percent, promotion_gate, started_at } = release
  const gate = gates.find(({ id }) => id === promotion_gate)
  return (
    <Section
      title={texts.title}
      actions={
        mayRelease && (
          <>
            <FormButton label={texts.change} variant="default" size="xs" form={form} />
            <ActionButton
              label={texts.abort}
              question={texts.abortText(stable_version)}
              stale={stale}
              message={texts.aborted}
              run={async () => abortAgentRelease(api, { agent_id: agent.id })}
            />
            <ActionButton
              label={texts.promote}
              variant="filled"
              question={texts.promoteText(canary_version)}
              stale={stale}
              message={texts.promoted}
              run={async () => promoteAgentRelease(api, { agent_id: agent.id })}
            />
          </>
        )
      }
    >
      <Stack gap={6}>
        <Progress
          value={canary_percent}
          size="lg"
          radius="md"
          aria-label={texts.share(canary_percent, canary_version)}
        />
        <Text size="sm">{texts.share(canary_percent, canary_version)}</Text>
      </Stack>
      <Facts
        facts={[
          [texts.stable, stable_version],
          [texts.canary, canary_version],
          [texts.gate, promotion_gate && visible(gate?.name ?? promotion_gate)],
          [texts.since, started_at && <When at={started_at} />],
        ]}
      />
    </Section>
  )
}

function ReleaseForm({
  agent,
  versions,
  gates,
  onDone,
}: {
  agent: Agent
  versions: AgentVersion[]
  gates: Eval[]
  onDone: () => void
}) {
  const { active_release: release } = agent
  const choices = versions.map(({ version, label }) => ({
    value: String(version),
    label: `${strings.version} ${version}${label ? ` – ${visible(label)}` : ''}`,
  }))
  const [newest, before] = versions
  const set = useAction({
    run: async ({ stable_version, canary_version, ...values }: Values) =>
      setAgentRelease(api, {
        agent_id: agent.id,
        ...values,
        stable_version: Number(stable_version),
        canary_version: Number(canary_version),
      } as Parameters<typeof setAgentRelease>[1]),
    stale: [['agent', agent.id], ['agents']],
    message: texts.started,
    onDone,
  })
  return (
    <SchemaForm
      schema={releaseFields}
      omit={['expected_version']}
      start={{
        stable_version: String(release?.stable_version ?? before?.version ?? newest.version),
        canary_version: String(release?.canary_version ?? newest.version),
        canary_percent: release?.canary_percent ?? 10,
        promotion_gate: release?.promotion_gate,
      }}
      options={{
        stable_version: choices,
        canary_version: choices,
        promotion_gate: gates.map(({ id, name }) => ({ value: id, label: visible(name) })),
      }}
      isPending={set.isPending}
      error={set.error}
      onSubmit={values => set.mutate(values)}
      onCancel={onDone}
    />
  )
}
