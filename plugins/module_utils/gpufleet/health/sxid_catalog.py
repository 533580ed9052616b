# SPDX-License-Identifier: Apache-2.0
"""What each SXid number of the NVSwitch driver means, and how bad it is where the line itself does not say so.

The numbers, names, classes and texts are those of the open driver 595.45.04 for the switch of HGX H100 (LS10), merged
in this project's research (sxid_merged.tsv). Numbers move between driver branches: 28006 of one branch is 29006 of
another, with the same text. Hence a message is looked up by its text as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

# unit: number NAME of the unit: what it is. Below it, number, class, name within the unit, text behind "Fatal, Link n".
# Classes: F fatal; C contained (printed as Fatal; the link or port stops); N non-fatal; I a notice without either word.
# older: numbers that the driver knows, but that the switch of HGX H100 does not raise.
_TABLE = """\
10000 HW_HOST: host interface of the switch
  10001 F PRIV_ERROR: Unexpected PRI error
  10004 I THERMAL_EVENT_START: NVSWITCH Temperature
  10005 I THERMAL_EVENT_END: NVSWITCH Temperature
  10006 I THERMAL_SHUTDOWN: NVSWITCH Temperature
  10008 F FIRMWARE_INITIALIZATION_FAILURE: Firmware initialization failure
  10010 I TNVL_ERROR: ENG reg-write failed. TNVL mode is not enabled
  older: 10002 PRIV_TIMEOUT, 10003 UNHANDLED_INTERRUPT, 10007 IO_FAILURE, 10009 FIRMWARE_RECOVERY_MODE
11000 HW_NPORT_INGRESS: ingress side of a port
  11001 C CMDDECODEERR: ingress invalid command
  11004 N ACLFAIL: ingress invalid ACL
  11009 C INVALIDVCSET: ingress invalid VCSet
  11011 N REQCONTEXTMISMATCHERR: ingress request context mismatch
  11012 N NCISOC_HDR_ECC_LIMIT_ERR: ingress header ECC
  11013 C NCISOC_HDR_ECC_DBE_ERR: ingress header DBE
  11014 N ADDRBOUNDSERR: ingress address bounds
  11015 N RIDTABCFGERR: ingress RID packet
  11016 N RLANTABCFGERR: ingress RLAN packet
  11017 C REMAPTAB_ECC_DBE_ERR: ingress Remap DBE
  11018 C RIDTAB_ECC_DBE_ERR: ingress RID DBE
  11019 C RLANTAB_ECC_DBE_ERR: ingress RLAN DBE
  11020 C NCISOC_PARITY_ERR: ingress control parity
  11021 N REMAPTAB_ECC_LIMIT_ERR: ingress remap ECC
  11022 N RIDTAB_ECC_LIMIT_ERR: ingress RID ECC
  11023 N RLANTAB_ECC_LIMIT_ERR: ingress RLAN ECC
  11024 N ADDRTYPEERR: ingress illegal address
  11025 N EXTAREMAPTAB_INDEX_ERR: ingress ExtA remap index
  11026 N EXTBREMAPTAB_INDEX_ERR: ingress ExtB remap index
  11027 N MCREMAPTAB_INDEX_ERR: ingress MC remap index
  11028 C EXTAREMAPTAB_ECC_DBE_ERR: ingress ExtA remap DBE
  11029 C EXTBREMAPTAB_ECC_DBE_ERR: ingress ExtB remap DBE
  11030 C MCREMAPTAB_ECC_DBE_ERR: ingress MC remap DBE
  11031 N EXTAREMAPTAB_REQCONTEXTMISMATCHERR: ingress ExtA request context mismatch
  11032 N EXTBREMAPTAB_REQCONTEXTMISMATCHERR: ingress ExtB request context mismatch
  11033 N MCREMAPTAB_REQCONTEXTMISMATCHERR: ingress MC request context mismatch
  11034 N EXTAREMAPTAB_ACLFAIL: ingress invalid ExtA ACL
  11035 N EXTBREMAPTAB_ACLFAIL: ingress invalid ExtB ACL
  11036 N MCREMAPTAB_ACLFAIL: ingress invalid MC ACL
  11037 N EXTAREMAPTAB_ADDRBOUNDSERR: ingress ExtA address bounds
  11038 N EXTBREMAPTAB_ADDRBOUNDSERR: ingress ExtB address bounds
  11039 N MCREMAPTAB_ADDRBOUNDSERR: ingress MC address bounds
  11040 N EXTAREMAPTAB_ECC_LIMIT_ERR: ingress ExtA remap ECC
  11041 N EXTBREMAPTAB_ECC_LIMIT_ERR: ingress ExtB remap ECC
  11042 N MCREMAPTAB_ECC_LIMIT_ERR: ingress MC remap ECC
  11043 N MCCMDTOUCADDRERR: ingress MC command to uc
  11044 N READMCREFLECTMEMERR: ingress read reflective
  11045 N EXTAREMAPTAB_ADDRTYPEERR: ingress ExtA address type
  11046 N EXTBREMAPTAB_ADDRTYPEERR: ingress ExtB address type
  11047 N MCREMAPTAB_ADDRTYPEERR: ingress MC address type
  older: 11002 BDFMISMATCHERR, 11003 BUBBLEDETECT, 11005 PKTPOISONSET, 11006 ECCSOFTLIMITERR, 11007
    ECCHDRDOUBLEBITERR, 11008 INVALIDCMD, 11010 ERRORINFO
12000 HW_NPORT_EGRESS: egress side of a port
  12001 C EGRESSBUFERR: egress crossbar overflow
  12002 C PKTROUTEERR: egress packet route
  12014 C DROPNPURRSPERR: egress non-posted UR error
  12020 C SEQIDERR: egress sequence ID error
  12021 N NXBAR_HDR_ECC_LIMIT_ERR: egress input ECC error limit
  12022 C NXBAR_HDR_ECC_DBE_ERR: egress input ECC DBE error
  12023 N RAM_OUT_HDR_ECC_LIMIT_ERR: egress output ECC error limit
  12024 C RAM_OUT_HDR_ECC_DBE_ERR: egress output ECC DBE error
  12025 C NCISOCCREDITOVFL: egress credit overflow
  12026 C REQTGTIDMISMATCHERR: egress destination request ID error
  12027 C RSPREQIDMISMATCHERR: egress destination response ID error
  12028 N PRIVRSPERR: egress non-posted PRIV error
  12029 C HWRSPERR: egress non-posted HW error
  12030 C NXBAR_HDR_PARITY_ERR: egress control parity error
  12031 C NCISOC_CREDIT_PARITY_ERR: egress credit parity error
  12032 C NXBAR_FLITTYPE_MISMATCH_ERR: egress flit type mismatch
  12033 C CREDIT_TIME_OUT_ERR: egress credit timeout
  12034 C INVALIDVCSET_ERR: egress invalid VC set
  12035 C NXBAR_SIDEBAND_PD_PARITY_ERR: egress crossbar SB parity
  12036 N NXBAR_REDUCTION_HDR_ECC_LIMIT_ERR: egress reduction header ECC error limit
  12037 N NXBAR_REDUCTION_HDR_ECC_DBE_ERR: egress reduction header ECC DBE error
  12038 N MCRSPCTRLSTORE_ECC_LIMIT_ERR: egress MC response ECC error limit
  12039 C MCRSPCTRLSTORE_ECC_DBE_ERR: egress MC response ECC DBE error
  12040 N RBCTRLSTORE_ECC_LIMIT_ERR: egress RB ECC error limit
  12041 C RBCTRLSTORE_ECC_DBE_ERR: egress reduction ECC DBE error
  12042 N MCREDSGT_ECC_LIMIT_ERR: egress RSG ECC error limit
  12043 C MCREDSGT_ECC_DBE_ERR: egress MC SG ECC DBE error
  12044 N MCREDBUF_ECC_LIMIT_ERR: egress MCRB ECC error limit
  12045 N MCREDBUF_ECC_DBE_ERR: egress reduction buffer ECC DBE error
  12046 N MCRSP_RAM_HDR_ECC_LIMIT_ERR: egress MC header ECC error limit
  12047 C MCRSP_RAM_HDR_ECC_DBE_ERR: egress MC ram ECC DBE error
  12048 N NXBAR_REDUCTION_HDR_PARITY_ERR: egress reduction header parity error
  12049 N NXBAR_REDUCTION_FLITTYPE_MISMATCH_ERR: egress reduction flit mismatch error
  12050 N MCRSP_CNT_ERR: egress MC response count error
  12051 N RBRSP_CNT_ERR: egress reduction response count error
  older: 12003 ECCSINGLEBITLIMITERR0, 12004 ECCHDRDOUBLEBITERR0, 12005 ECCDATADOUBLEBITERR0, 12006
    ECCSINGLEBITLIMITERR1, 12007 ECCHDRDOUBLEBITERR1, 12008 ECCDATADOUBLEBITERR1, 12009 NCISOCHDRCREDITOVFL, 12010
    NCISOCDATACREDITOVFL, 12011 ADDRMATCHERR, 12012 TAGCOUNTERR, 12013 FLUSHRSPERR, 12015 POISONERR, 12016
    PACKET_HEADER, 12017 BUFFER_DATA, 12018 NCISOC_CREDITS, 12019 TAG_DATA
13000 HW_NPORT_FSTATE: flush state of a port
  older: 13001 TAGPOOLBUFERR, 13002 CRUMBSTOREBUFERR, 13003 SINGLEBITECCLIMITERR_CRUMBSTORE, 13004
    UNCORRECTABLEECCERR_CRUMBSTORE, 13005 SINGLEBITECCLIMITERR_TAGSTORE, 13006 UNCORRECTABLEECCERR_TAGSTORE, 13007
    SINGLEBITECCLIMITERR_FLUSHREQSTORE, 13008 UNCORRECTABLEECCERR_FLUSHREQSTORE
14000 HW_NPORT_TSTATE: transaction state of a port
  14001 C TAGPOOLBUFERR: TS pointer crossover
  14002 C CRUMBSTOREBUFERR: TS crumbstore
  14007 N TAGPOOL_ECC_LIMIT_ERR: TS tag store single-bit threshold
  14008 C TAGPOOL_ECC_DBE_ERR: TS tag store fatal ECC
  14009 N CRUMBSTORE_ECC_LIMIT_ERR: TS crumbstore single-bit threshold
  14010 C CRUMBSTORE_ECC_DBE_ERR: TS crumbstore fatal ECC
  14017 C ATO_ERR: TS ATO timeout
  14018 C CAMRSP_ERR: Rsp Tag value out of range
  older: 14003 SINGLEBITECCLIMITERR_CRUMBSTORE, 14004 UNCORRECTABLEECCERR_CRUMBSTORE, 14005
    SINGLEBITECCLIMITERR_TAGSTORE, 14006 UNCORRECTABLEECCERR_TAGSTORE, 14011 COL_CRUMBSTOREBUFERR, 14012
    COL_CRUMBSTORE_ECC_LIMIT_ERR, 14013 COL_CRUMBSTORE_ECC_DBE_ERR, 14014 TD_TID_RAMBUFERR, 14015
    TD_TID_RAM_ECC_LIMIT_ERR, 14016 TD_TID_RAM_ECC_DBE_ERR
15000 HW_NPORT_ROUTE: routing unit of a port
  15001 C ROUTEBUFERR: route buffer over/underflow
  15002 N NOPORTDEFINEDERR: route undefined route
  15003 N INVALIDROUTEPOLICYERR: route invalid policy
  15009 C GLT_ECC_DBE_ERR: route GLT DBE
  15010 C PDCTRLPARERR: route parity
  15011 N NVS_ECC_LIMIT_ERR: EXTMCRID ECC limit
  15012 C NVS_ECC_DBE_ERR: route incoming DBE
  15013 C CDTPARERR: route credit parity
  15015 C MCRID_ECC_DBE_ERR: MC route ECC
  15017 C EXTMCRID_ECC_DBE_ERR: Extd MC route ECC
  15018 N RAM_ECC_LIMIT_ERR: RAM ECC limit
  15019 C RAM_ECC_DBE_ERR: route RAM ECC
  15020 N INVALID_MCRID_ERR: invalid MC route
  older: 15004 ECCLIMITERR, 15005 UNCORRECTABLEECCERR, 15006 TRANSDONERESVERR, 15007 PACKET_HEADER, 15008
    GLT_ECC_LIMIT_ERR, 15014 MCRID_ECC_LIMIT_ERR, 15016 EXTMCRID_ECC_LIMIT_ERR
16000 HW_NPORT: port
  older: 16001 DATAPOISONED, 16002 UCINTERNAL, 16003 CINTERNAL
17000 HW_NVLCTRL: link controller
  older: 17001 INGRESSECCSOFTLIMITERR, 17002 INGRESSECCHDRDOUBLEBITERR, 17003 INGRESSECCDATADOUBLEBITERR, 17004
    INGRESSBUFFERERR, 17005 EGRESSECCSOFTLIMITERR, 17006 EGRESSECCHDRDOUBLEBITERR, 17007 EGRESSECCDATADOUBLEBITERR,
    17008 EGRESSBUFFERERR
18000 HW_NVLIPT: link interface
  18020 C CLKCTL_ILLEGAL_REQUEST: CLKCTL_ILLEGAL_REQUEST
  older: 18001 DLPROTOCOL, 18002 DATAPOISONED, 18003 FLOWCONTROL, 18004 RESPONSETIMEOUT, 18005 TARGETERROR, 18006
    UNEXPECTEDRESPONSE, 18007 RECEIVEROVERFLOW, 18008 MALFORMEDPACKET, 18009 STOMPEDPACKETRECEIVED, 18010
    UNSUPPORTEDREQUEST, 18011 UCINTERNAL, 18012 PHYRECEIVER, 18013 BADAN0PKT, 18014 REPLAYTIMEOUT, 18015
    ADVISORYERROR, 18016 CINTERNAL, 18017 HEADEROVERFLOW, 18018 RSTSEQ_PHYARB_TIMEOUT, 18019 RSTSEQ_PLL_TIMEOUT
19000 HW_NVLTLC: transaction layer of a link
  19004 F TXDLCREDITPARITYERR: TX DL Credit Parity Error
  19009 F TXPOISONDET: Poison Error
  19013 F RXDLHDRPARITYERR: RX DL HDR Parity Error
  19014 F RXDLDATAPARITYERR: RX DL Data Parity Error
  19015 F RXDLCTRLPARITYERR: RX DL Ctrl Parity Error
  19021 F RXPKTLENERR: RX Packet Length Error
  19027 F RSVCACHEATTRPROBEREQERR: RSV Packet Status Error
  19028 F RSVCACHEATTRPROBERSPERR: RSV CacheAttr Probe Rsp Error
  19030 F DATLENGTRMWREQMAXERR: Data Length RMW Req Max Error
  19031 F DATLENLTATRRSPMINERR: Data Len Lt ATR RSP Min Error
  19032 F INVALIDCACHEATTRPOERR: Invalid Cache Attr PO Error
  19036 F RXHDROVFERR: RX HDR OVF Error
  19037 F RXDATAOVFERR: RX Data OVF Error
  19038 F STOMPDETERR: Stomp Det Error
  19039 F RXPOISONERR: RX Poison Error
  19046 F TX_SYS_NCISOC_PARITY_ERR: NCISOC Parity Error
  19047 F TX_SYS_NCISOC_HDR_ECC_DBE_ERR: NCISOC HDR ECC DBE Error
  19048 N TX_SYS_NCISOC_DAT_ECC_DBE_ERR: NCISOC DAT ECC DBE Error
  19049 N TX_SYS_NCISOC_ECC_LIMIT_ERR: NCISOC ECC Limit Error
  19050 F TX_SYS_TXRSPSTATUS_HW_ERR: TX Response Status HW Error
  19051 F TX_SYS_TXRSPSTATUS_UR_ERR: TX Response Status UR Error
  19052 F TX_SYS_TXRSPSTATUS_PRIV_ERR: TX Response Status PRIV Error
  19053 F RX_SYS_NCISOC_PARITY_ERR: NCISOC Parity Error
  19054 F RX_SYS_HDR_RAM_ECC_DBE_ERR: HDR RAM ECC DBE Error
  19055 F RX_SYS_HDR_RAM_ECC_LIMIT_ERR: HDR RAM ECC Limit Error
  19056 N RX_SYS_DAT0_RAM_ECC_DBE_ERR: DAT0 RAM ECC DBE Error
  19057 F RX_SYS_DAT0_RAM_ECC_LIMIT_ERR: DAT0 RAM ECC Limit Error
  19058 N RX_SYS_DAT1_RAM_ECC_DBE_ERR: DAT1 RAM ECC DBE Error
  19059 F RX_SYS_DAT1_RAM_ECC_LIMIT_ERR: DAT1 RAM ECC Limit Error
  19060 F TX_LNK_CREQ_RAM_HDR_ECC_DBE_ERR: CREQ RAM HDR ECC DBE Error
  19061 N TX_LNK_CREQ_RAM_DAT_ECC_DBE_ERR: CREQ RAM DAT ECC DBE Error
  19062 N TX_LNK_CREQ_RAM_ECC_LIMIT_ERR: CREQ RAM DAT ECC Limit Error
  19063 F TX_LNK_RSP_RAM_HDR_ECC_DBE_ERR: Response RAM HDR ECC DBE Error
  19064 N TX_LNK_RSP_RAM_DAT_ECC_DBE_ERR: Response RAM DAT ECC DBE Error
  19065 N TX_LNK_RSP_RAM_ECC_LIMIT_ERR: Response RAM ECC Limit Error
  19066 F TX_LNK_COM_RAM_HDR_ECC_DBE_ERR: COM RAM HDR ECC DBE Error
  19067 N TX_LNK_COM_RAM_DAT_ECC_DBE_ERR: COM RAM DAT ECC DBE Error
  19068 N TX_LNK_COM_RAM_ECC_LIMIT_ERR: COM RAM ECC Limit Error
  19069 F TX_LNK_RSP1_RAM_HDR_ECC_DBE_ERR: RSP1 RAM HDR ECC DBE Error
  19070 F TX_LNK_RSP1_RAM_DAT_ECC_DBE_ERR: RSP1 RAM DAT ECC DBE Error
  19071 N TX_LNK_RSP1_RAM_ECC_LIMIT_ERR: RSP1 RAM ECC Limit Error
  19072 N TX_LNK_AN1_TIMEOUT_VC0: AN1 Timeout VC0
  19073 N TX_LNK_AN1_TIMEOUT_VC1: AN1 Timeout VC1
  19074 N TX_LNK_AN1_TIMEOUT_VC2: AN1 Timeout VC2
  19075 N TX_LNK_AN1_TIMEOUT_VC3: AN1 Timeout VC3
  19076 N TX_LNK_AN1_TIMEOUT_VC4: AN1 Timeout VC4
  19077 N TX_LNK_AN1_TIMEOUT_VC5: AN1 Timeout VC5
  19078 N TX_LNK_AN1_TIMEOUT_VC6: AN1 Timeout VC6
  19079 N TX_LNK_AN1_TIMEOUT_VC7: AN1 Timeout VC7
  19080 F RX_LNK_RXRSPSTATUS_HW_ERR: RX Rsp Status HW Error
  19081 F RX_LNK_RXRSPSTATUS_UR_ERR: RX Rsp Status UR Error
  19082 N RX_LNK_RXRSPSTATUS_PRIV_ERR: RX Rsp Status PRIV Error
  19083 F RX_LNK_INVALID_COLLAPSED_RESPONSE_ERR: Invalid Collapsed Response Error
  19084 N RX_LNK_AN1_HEARTBEAT_TIMEOUT_ERR: AN1 Heartbeat Timeout Error
  older: 19001 TXHDRCREDITOVFERR, 19002 TXDATACREDITOVFERR, 19003 TXDLCREDITOVFERR, 19005 TXRAMHDRPARITYERR, 19006
    TXRAMDATAPARITYERR, 19007 TXUNSUPVCOVFERR, 19008 TXSTOMPDET, 19010 TARGETERR, 19011 TX_PACKET_HEADER, 19012
    UNSUPPORTEDREQUESTERR, 19016 RXRAMDATAPARITYERR, 19017 RXRAMHDRPARITYERR, 19018 RXINVALIDAEERR, 19019
    RXINVALIDBEERR, 19020 RXINVALIDADDRALIGNERR, 19022 RSVCMDENCERR, 19023 RSVDATLENENCERR, 19024 RSVADDRTYPEERR,
    19025 RSVRSPSTATUSERR, 19026 RSVPKTSTATUSERR, 19029 DATLENGTATOMICREQMAXERR, 19033 INVALIDCRERR, 19034
    RXRESPSTATUSTARGETERR, 19035 RXRESPSTATUSUNSUPPORTEDREQUESTERR, 19040 CORRECTABLEINTERNALERR, 19041
    RXUNSUPVCOVFERR, 19042 RXUNSUPNVLINKCREDITRELERR, 19043 RXUNSUPNCISOCCREDITRELERR, 19044 RX_PACKET_HEADER, 19045
    RX_ERR_HEADER
20000 HW_DLPL: data link layer of a link
  20001 N TX_REPLAY: TX Replay Error
  20002 N TX_RECOVERY_SHORT: TX Recovery Short
  20004 F TX_FAULT_RAM: TX Fault Ram
  20005 F TX_FAULT_INTERFACE: TX Fault Interface
  20006 F TX_FAULT_SUBLINK_CHANGE: TX Fault Sublink Change
  20007 F RX_FAULT_SUBLINK_CHANGE: RX Fault Sublink Change
  20008 F RX_FAULT_DL_PROTOCOL: RX Fault DL Protocol
  20009 N RX_SHORT_ERROR_RATE: RX Short Error Rate
  20010 N RX_LONG_ERROR_RATE: RX Long Error Rate
  20011 N RX_ILA_TRIGGER: RX ILA Trigger
  20012 N RX_CRC_COUNTER: RX CRC Error Rate
  20014 F LTSSM_PROTOCOL: LTSSM Protocol Error
  20034 F LTSSM_FAULT_UP: LTSSM Fault Up
  20035 F LTSSM_FAULT_DOWN: LTSSM Fault Down
  20036 F PHY_A: PHY_A Error
  20037 F TX_PL_ERROR: TX_PL Error
  20038 F RX_PL_ERROR: RX_PL Error
  older: 20003 TX_RECOVERY_LONG, 20013 LTSSM_FAULT, 20015 MINION_REQUEST, 20016 FIFO_DRAIN_ERR, 20017 CONST_DET_ERR,
    20018 OFF2SAFE_LINK_DET_ERR, 20019 SAFE2NO_LINK_DET_ERR, 20020 SCRAM_LOCK_ERR, 20021 SYM_LOCK_ERR, 20022
    SYM_ALIGN_END_ERR, 20023 FIFO_SKEW_ERR, 20024 TRAIN2SAFE_LINK_DET_ERR, 20025 HS2SAFE_LINK_DET_ERR, 20026
    FENCE_ERR, 20027 SAFE_NO_LD_ERR, 20028 E2SAFE_LD_ERR, 20029 RC_RXPWR_ERR, 20030 RC_TXPWR_ERR, 20031
    RC_DEADLINE_ERR, 20032 TX_HS2LP_ERR, 20033 RX_HS2LP_ERR
21000 HW_AFS: crossbar of older switches
  older: 21001 UC_INGRESS_CREDIT_OVERFLOW, 21002 UC_INGRESS_CREDIT_UNDERFLOW, 21003 UC_EGRESS_CREDIT_OVERFLOW, 21004
    UC_EGRESS_CREDIT_UNDERFLOW, 21005 UC_INGRESS_NON_BURSTY_PKT_DETECTED, 21006 UC_INGRESS_NON_STICKY_PKT_DETECTED,
    21007 UC_INGRESS_BURST_GT_17_DATA_VC_DETECTED, 21008 UC_INGRESS_BURST_GT_1_NONDATA_VC_DETECTED, 21009
    UC_INVALID_DST, 21010 UC_PKT_MISROUTE
22000 HW_MINION: link micro-controller (Minion)
  22003 F HALT: MINION HALT
  22010 F WATCHDOG: MINION Watchdog timer ran out
  22011 F EXTERR: MINION EXTERR
  22012 F FATAL_LINK_INTR: Minion Interrupt code unknown
  22013 N NONFATAL: Minion Link DLREQ interrupt
  older: 22001 UCODE_IMEM, 22002 UCODE_DMEM, 22004 BOOT_ERROR, 22005 TIMEOUT, 22006 DLCMD_FAULT, 22007
    DLCMD_TIMEOUT, 22008 DLCMD_FAIL, 22009 FATAL_INTR
23000 HW_NXBAR: crossbar
  23001 F TILE_INGRESS_BUFFER_OVERFLOW: ingress SRC-VC buffer overflow
  23002 F TILE_INGRESS_BUFFER_UNDERFLOW: ingress SRC-VC buffer underflow
  23003 F TILE_EGRESS_CREDIT_OVERFLOW: egress DST-VC credit overflow
  23004 F TILE_EGRESS_CREDIT_UNDERFLOW: egress DST-VC credit underflow
  23005 F TILE_INGRESS_NON_BURSTY_PKT: ingress packet burst error
  23006 F TILE_INGRESS_NON_STICKY_PKT: ingress packet sticky error
  23007 F TILE_INGRESS_BURST_GT_9_DATA_VC: possible bubbles at ingress
  23008 F TILE_INGRESS_PKT_INVALID_DST: ingress packet invalid dst error
  23009 F TILE_INGRESS_PKT_PARITY_ERROR: ingress packet parity error
  23010 F TILEOUT_INGRESS_BUFFER_OVERFLOW: ingress SRC-VC buffer overflow
  23011 F TILEOUT_INGRESS_BUFFER_UNDERFLOW: ingress SRC-VC buffer underflow
  23012 F TILEOUT_EGRESS_CREDIT_OVERFLOW: egress DST-VC credit overflow
  23013 F TILEOUT_EGRESS_CREDIT_UNDERFLOW: egress DST-VC credit underflow
  23014 F TILEOUT_INGRESS_NON_BURSTY_PKT: ingress packet burst error
  23015 F TILEOUT_INGRESS_NON_STICKY_PKT: ingress packet sticky error
  23016 F TILEOUT_INGRESS_BURST_GT_9_DATA_VC: possible bubbles at ingress
  23017 F TILEOUT_EGRESS_CDT_PARITY_ERROR: ingress credit parity error
24000 HW_NPORT_SOURCETRACK: source tracker of a port
  24001 N CREQ_TCEN0_CRUMBSTORE_ECC_LIMIT_ERR: sourcetrack TCEN0 crumbstore ECC limit err
  24004 C CREQ_TCEN0_CRUMBSTORE_ECC_DBE_ERR: sourcetrack TCEN0 crumbstore DBE
  24007 C SOURCETRACK_TIME_OUT_ERR: sourcetrack timeout error
  24008 C DUP_CREQ_TCEN0_TAG_ERR: sourcetrack duplicate CREQ
  24009 C INVALID_TCEN0_RSP_ERR: sourcetrack invalid TCEN0 CREQ
  24010 C INVALID_TCEN1_RSP_ERR: sourcetrack invalid TCEN1 CREQ
  older: 24002 CREQ_TCEN0_TD_CRUMBSTORE_ECC_LIMIT_ERR, 24003 CREQ_TCEN1_CRUMBSTORE_ECC_LIMIT_ERR, 24005
    CREQ_TCEN0_TD_CRUMBSTORE_ECC_DBE_ERR, 24006 CREQ_TCEN1_CRUMBSTORE_ECC_DBE_ERR
25000 HW_NVLIPT_LNK: link interface
  25001 N ILLEGALLINKSTATEREQUEST: _HW_NVLIPT_LNK_ILLEGALLINKSTATEREQUEST
  25002 N FAILEDMINIONREQUEST: _FAILEDMINIONREQUEST
  25003 N RESERVEDREQUESTVALUE: _RESERVEDREQUESTVALUE
  25004 N LINKSTATEWRITEWHILEBUSY: _LINKSTATEWRITEWHILEBUSY
  25005 N LINK_STATE_REQUEST_TIMEOUT: _LINK_STATE_REQUEST_TIMEOUT
  25006 N WRITE_TO_LOCKED_SYSTEM_REG_ERR: _WRITE_TO_LOCKED_SYSTEM_REG_ERR
  25007 F SLEEPWHILEACTIVELINK: No non-empty link is detected
  25008 F RSTSEQ_PHYCTL_TIMEOUT: Reset sequencer timed out waiting for a handshake from PHYCT
  25009 F RSTSEQ_CLKCTL_TIMEOUT: Reset sequencer timed out waiting for a handshake from CLKCT
  25010 I ALI_TRAINING_FAIL: ALI Training failure. Info
26000 HW_SOE: control processor of the switch (SOE)
  26002 I BOOTSTRAP: SOE init Failed(0)
  26003 I COMMAND_QUEUE: Failed to register SOE events
  26006 I HALT: SOE HALT data[
  26007 I EXTERR: SOE EXTERR
  26008 I WATCHDOG: SOE Watchdog error
  older: 26001 RESET, 26004 TIMEOUT, 26005 SHUTDOWN
27000 HW_CCI: cable management
  27005 I MODULE: Module
  older: 27001 RESET, 27002 INIT, 27003 TIMEOUT, 27004 SHUTDOWN, 27006 MODULE_BOOT, 27007 MODULE_RECOVERY
28000 HW_OSFP_THERM: optical cage
  28001 I WARN_ACTIVATED: OSFP Thermal Warn Activated
  28002 I WARN_DEACTIVATED: OSFP Thermal Warn Deactivated
  28003 I OVERT_ACTIVATED: OSFP Thermal Overt Activated
  28004 I OVERT_DEACTIVATED: OSFP Thermal Overt Deactivated
  28005 I HEARTBEAT_SHUTDOWN: OSFP Thermal SOE Heartbeat Shutdown
29000 HW_NPORT_MULTICASTTSTATE: multicast unit of a port
  29001 N TAGPOOL_ECC_LIMIT_ERR: MC TS tag store single-bit threshold
  29002 C TAGPOOL_ECC_DBE_ERR: MC TS tag store fatal ECC
  29003 N CRUMBSTORE_ECC_LIMIT_ERR: MC TS crumbstore single-bit threshold
  29004 C CRUMBSTORE_ECC_DBE_ERR: MC TS crumbstore fatal ECC
  29005 C CRUMBSTORE_BUF_OVERWRITE_ERR: MC crumbstore overwrite
  29006 N CRUMBSTORE_MCTO_ERR: MC TS crumbstore MCTO
30000 HW_NPORT_REDUCTIONTSTATE: reduction unit of a port
  30001 N TAGPOOL_ECC_LIMIT_ERR: Red TS tag store single-bit threshold
  30002 C TAGPOOL_ECC_DBE_ERR: Red TS tag store fatal ECC
  30003 N CRUMBSTORE_ECC_LIMIT_ERR: Red TS crumbstore single-bit threshold
  30004 C CRUMBSTORE_ECC_DBE_ERR: Red TS crumbstore fatal ECC
  30005 C CRUMBSTORE_BUF_OVERWRITE_ERR: Red crumbstore overwrite
  30006 N CRUMBSTORE_RTO_ERR: Red TS crumbstore RTO
"""

CLASSES = {"F": "fatal", "C": "contained", "N": "non-fatal", "I": "notice", "": "older"}


class SxidEntry(NamedTuple):
    """One number. kind: fatal, contained, non-fatal, notice, older (not raised by the H100 switch) or unknown.

    name: the driver's own. text: how the driver's message begins, "" where it is not known. severity: warn or fail;
    action: a rung of the ladder; both for a line that has no word Fatal or Non-fatal. meaning, advice, if_it_returns:
    sentences.
    """

    number: int
    name: str
    kind: str
    text: str
    severity: str
    action: str
    meaning: str
    advice: str
    if_it_returns: str


# What went wrong, by words in the driver's name; the first that fits.
_FAULTS = (
    (r"ECC_?LIMIT|ECC_SOFT|ECCSOFT|SINGLE_?BIT", "corrected memory errors went over a limit"),
    (r"DBE|DOUBLEBIT|UNCORRECTABLE", "an uncorrectable memory error"),
    (r"PARITY|PAR(?:ERR|_)", "a parity error"),
    (r"UNDERFLOW|OVERFLOW|OVFL|OVF|BUFERR|BUFFERERR|OVERWRITE", "a buffer or a credit counter ran over or empty"),
    (r"TIME_?OUT|MCTO|RTO_|ATO_|HEARTBEAT|WATCHDOG", "something did not answer in time"),
    (r"HALT|EXTERR|FATAL_INTR|SHUTDOWN", "it stopped"),
    (r"REPLAY|RECOVERY|CRC|ERROR_RATE", "bit errors, mended by sending again"),
    (r"LTSSM|SUBLINK|PHY|PL_ERROR|TRAIN|FAULT", "the link failed or could not be trained"),
    (r"PRIV", "an access was refused"),
    (r"ACL|BOUNDS|ROUTE|RID|RLAN|VCSET|INVALID|ILLEGAL|MISMATCH|CMD|ADDR|UNSUPP", "a packet or request is not valid"),
    (r"THERM|OVERT|WARN", "a temperature limit"),
    (r"POISON|STOMP", "damaged data was marked as such and passed on"),
)
_FAULT_WORDS = tuple((re.compile(pattern), words) for pattern, words in _FAULTS)

_DRAIN = "Drain the node, then reset all GPUs and NVSwitches together (they share the fabric), or reboot."
_DRAIN_RETURNS = (
    "Look at the link and the GPU at its end; if other links of the switch show it too, inspect the GPU board."
)
_WATCH = "Let jobs go on; count how often it comes per link, and look at NVLink error counters (checks nvlink)."
_WATCH_RETURNS = (
    "When one link keeps showing it, reset the fabric at the next idle time and look at both ends of the link."
)
_LOOK = "A person must look: read the lines around it in the kernel log and in the fabric manager's log."
_LOOK_RETURNS = "Keep the node's capture and open a case with the maker of the board."
_REBOOT = "Drain and reboot the node."
_BOARD = "The GPU board with this switch is to be inspected: open a case with its maker."

_BY_KIND = {
    "fatal": ("fail", "reset_gpu", _DRAIN, _DRAIN_RETURNS),
    "contained": ("fail", "reset_gpu", _DRAIN, _DRAIN_RETURNS),
    "non-fatal": ("warn", "observe", _WATCH, _WATCH_RETURNS),
    "notice": ("warn", "observe", _LOOK, _LOOK_RETURNS),
    "older": ("warn", "observe", _LOOK, _LOOK_RETURNS),
    "unknown": ("warn", "observe", _LOOK, _LOOK_RETURNS),
}
_COOLING = "Look at fans, inlet temperature and the temperatures of the GPU board at once."
# Where the number tells more than its class (healthchecks.md, 2.2).
_BY_NUMBER = {
    10005: ("warn", "observe", "Nothing more; it tells that a high temperature is over.", _COOLING),
    10006: ("fail", "power_cycle", f"The switch has shut down for heat. {_COOLING}", _BOARD),
    10008: ("fail", "reboot", _REBOOT, _BOARD),
    12028: (
        "warn",
        "observe",
        "Let jobs go on; a GPU at the end of that link refused an access: look at its Xids.",
        _WATCH_RETURNS,
    ),
    22003: ("fail", "reset_gpu", _DRAIN, _BOARD),
    22011: ("fail", "reset_gpu", _DRAIN, _BOARD),
    22013: ("warn", "observe", "Nothing while the driver loads: links come up. Later, watch the link.", _WATCH_RETURNS),
    26002: ("fail", "reboot", _REBOOT, _BOARD),
    26006: ("fail", "reboot", _REBOOT, _BOARD),
    26007: ("fail", "reboot", _REBOOT, _BOARD),
    26008: ("fail", "reboot", _REBOOT, _BOARD),
    28001: ("warn", "observe", _COOLING, _BOARD),
    28003: ("fail", "inspect", _COOLING, _BOARD),
    28005: ("fail", "inspect", _COOLING, _BOARD),
}
_BY_NUMBER.update({number: ("fail", "reset_gpu", _DRAIN, _BOARD) for number in range(23001, 23018)})
# Bring-up of links while the driver loads; harmless then (NVIDIA/nvtrust issue 124).
LINK_BRING_UP = (22013,)


def _entry(number: int, name: str, kind: str, unit: str, text: str) -> SxidEntry:
    fault = next((words for pattern, words in _FAULT_WORDS if pattern.search(name)), "an error")
    severity, action, advice, if_it_returns = _BY_NUMBER.get(number, _BY_KIND[kind])
    meaning = f"NVSwitch, {unit}: {fault}."
    return SxidEntry(number, name, kind, text, severity, action, meaning, advice, if_it_returns)


def _catalog() -> dict[int, SxidEntry]:
    entries = {}
    for block in re.split(r"\n(?=\d)", _TABLE.rstrip()):
        heading, __, body = block.partition("\n")
        numbered, unit = heading.split(": ")
        base, prefix = numbered.split(" ")
        entries[int(base)] = _entry(int(base), prefix, "older", unit, "")
        body, __, older = body.partition("  older: ")
        for line in body.splitlines():
            number, kind, rest = line.strip().split(" ", 2)
            name, __, text = rest.partition(": ")
            entries[int(number)] = _entry(int(number), f"{prefix}_{name}", CLASSES[kind], unit, text)
        for item in older.split(",") if older else ():
            number, name = item.split()
            entries[int(number)] = _entry(int(number), f"{prefix}_{name}", CLASSES[""], unit, "")
    return dict(sorted(entries.items()))


SXIDS: Mapping[int, SxidEntry] = _catalog()


def sxid_entry(number: int) -> SxidEntry:
    """The entry of a number; one that asks for a person where this catalog has none."""
    unknown = SxidEntry(
        number, "", "unknown", "", *_BY_KIND["unknown"][:2], "This number is in no table.", _LOOK, _LOOK_RETURNS
    )
    return SXIDS.get(number, unknown)


def _plain(text: str) -> str:
    return " ".join(text.replace("(First)", "").split()).lower()


_NUMBERS_BY_TEXT: dict[str, list[int]] = {}
for _one in SXIDS.values():
    if _one.text:
        _NUMBERS_BY_TEXT.setdefault(_plain(_one.text), []).append(_one.number)


def entry_by_text(number: int, text: str) -> SxidEntry:
    """The entry that fits number and text; the text wins where this catalog has it under other numbers alone.

    text: what stands behind "Fatal, Link 12 "; it may go on behind the words that are known.
    """
    own = sxid_entry(number)
    plain = _plain(text)
    if not plain or (own.text and plain.startswith(_plain(own.text))):
        return own
    known = sorted((words for words in _NUMBERS_BY_TEXT if plain.startswith(words)), key=len)
    if not known or number in _NUMBERS_BY_TEXT[known[-1]]:
        return own
    return SXIDS[_NUMBERS_BY_TEXT[known[-1]][0]]
