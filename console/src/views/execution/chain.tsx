import type { Chain } from '@muster/client'
import { getChain, listGenerations, stopChain } from '@muster/client/operations'
import { useIds } from '#address.ts'
import { api, every, POLL_MS } from '#api.ts'
import { useAgents } from '#choices.ts'
import { ActionButton } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { Page } from '#components/page.tsx'
import { Facts, IdLine, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ChainStatus } from './chains.tsx'
import { TurnList } from './traces.tsx'

const texts = strings.chains

/** A chain: how far it is from its limit, and its turns. */
export function ChainView() {
  const { chainId } = useIds()
  return (
    <RecordPage<Chain, { chain_id: string }>
      queryKey={['chain', chainId]}
      get={getChain}
      ids={{ chain_id: chainId }}
      refetchInterval={query => (query.state.data?.status === 'active' ? every(POLL_MS)(query) : false)}
    >
      {chain => <ChainPage chain={chain} />}
    </RecordPage>
  )
}

function ChainPage({ chain }: { chain: Chain }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { nameOf } = useAgents(projectId)
  const { id, agent_id, status, generation_count, limit, limit_source, last_generation_at, stopped_at } = chain
  return (
    <Page
      title={texts.one}
      intro={<ChainStatus status={status} />}
      actions={
        stopped_at === null &&
        isAllowed(stopChain) && (
          <ActionButton
            label={texts.stop}
            size="sm"
            color="red"
            question={texts.stopText}
            run={async () => stopChain(api, { chain_id: id })}
            stale={[['chain', id], ['chains']]}
          />
        )
      }
    >
      <Section title={texts.one}>
        <Facts
          facts={[
            [
              texts.agent,
              <EntityLink key="agent" kind="agent" id={agent_id} projectId={projectId} name={nameOf(agent_id)} />,
            ],
            [texts.turns, texts.turnsOf(generation_count, limit)],
            [texts.limitBy, texts.limits[limit_source]],
            [texts.last, <When key="last" at={last_generation_at} />],
            [texts.stopped, stopped_at && <When key="stopped" at={stopped_at} />],
          ]}
        />
        <IdLine id={id} />
      </Section>
      {isAllowed(listGenerations) && (
        <Section title={texts.allTurns}>
          <TurnList chainId={id} />
        </Section>
      )}
    </Page>
  )
}
